"""What is learned about a route, and that it survives (R5.1, R5.4, R10.4)."""

import asyncio
import time

import pytest

from gateway.overflow import AnswerKind, Verdict
from gateway.routes import RouteBook
from gateway.settings import Settings, Upstream
from gateway.tasks import Supervisor
from store.open import open_store


def overflow(limit):
    return Verdict(AnswerKind.INPUT_OVERFLOW, limit, None, at_least=False)


@pytest.fixture
async def book(tmp_path):
    store = open_store(f"sqlite:///{tmp_path / 'a.db'}")
    await store.open()
    tasks = Supervisor()

    def make(listed=None, shipped=None):
        return RouteBook(store, tasks, lambda *_: listed, lambda *_: shipped)

    make.saved = lambda: tasks.drain(5)
    yield make
    await tasks.drain(5)
    await store.close()


def route(**more):
    upstream = Upstream(name="up", base_url="http://127.0.0.1:1/v1")
    return Settings(upstreams=(upstream,), **more).route_for("m")


async def test_the_window_is_the_first_that_is_known(book):
    """R5.1: the setting, the upstream's list, the shipped table."""
    assert book(1, 2).window(route(context_window=3)) == 3
    assert book(1, 2).window(route()) == 1
    assert book(None, 2).window(route()) == 2
    assert book().window(route()) is None


async def test_a_learned_limit_wins_where_it_is_lower_and_survives(book):
    """R5.1, R10.4."""
    first = book(100_000)
    first.learn_limit(route(), overflow(8192), 9000)
    assert first.window(route()) == 8192
    assert book(4096).window(route()) == 4096
    await book.saved()
    second = book(100_000)
    await second.load()
    assert second.window(route()) == 8192


async def test_a_refusal_without_a_limit_teaches_a_share_of_what_was_refused(book):
    """R10.4."""
    learned = book()
    learned.learn_limit(route(), overflow(None), 10_000)
    assert learned.window(route()) == 9500


async def test_a_stated_limit_below_what_was_just_accepted_is_ignored(book):
    """R10.4."""
    learned = book()
    learned.accepted(route(), 20_000, 20_000)
    learned.learn_limit(route(), overflow(8192), 20_000)
    assert learned.window(route()) is None


async def test_the_calibration_survives_a_restart(book):
    """R5.4: the largest of the last ratios."""
    first = book()
    assert first.ratio(route()) == 1.0
    first.accepted(route(), 1000, 1200)
    first.learn_limit(route(), overflow(8192), 9000)
    await book.saved()
    second = book()
    await second.load()
    assert second.ratio(route()) == pytest.approx(1.2)


async def test_members_and_parameters_that_were_refused_are_remembered(book):
    """R2.10 c, R8.2."""
    first = book()
    first.refuse_member("up/m", "stream_options")
    first.use_limit_name("up/m", "max_completion_tokens")
    await book.saved()
    second = book()
    await second.load()
    assert second.refused_members("up/m") == {"stream_options"}
    assert second.limit_name("up/m") == "max_completion_tokens"
    assert second.refused_members("up/other") == frozenset()


async def test_a_summariser_that_fails_is_left_alone_for_a_while(book):
    """R13.3."""
    learned = book()
    learned.summary_failed("up/m", 0.0)
    assert learned.backs_off("up/m")
    assert not learned.backs_off("up/other")
    learned.summary_succeeded("up/m")
    assert not learned.backs_off("up/m")


async def test_tasks_that_fail_are_logged_and_do_not_end_the_others():
    tasks = Supervisor()

    async def fails():
        raise ValueError

    task = tasks.spawn(fails(), "fails")
    await asyncio.wait([task])
    began = time.monotonic()
    tasks.spawn(asyncio.sleep(60), "late")
    await tasks.drain(0.05)
    assert time.monotonic() - began < 5
    assert isinstance(task.exception(), ValueError)
