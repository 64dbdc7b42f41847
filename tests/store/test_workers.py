"""A worker is alive as long as the process that entered it, not any process of that pid."""

import os
import subprocess
import sys

import pytest

from store.sqlite import workers


def test_this_process_is_alive():
    assert workers.is_alive(os.getpid(), workers.birth_of(os.getpid()))


def test_pid_of_another_birth_is_gone():
    assert not workers.is_alive(os.getpid(), "12345 earlier")


def test_process_that_ended_is_gone():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    birth = workers.birth_of(ended.pid)
    ended.wait()
    assert not workers.is_alive(ended.pid, birth)


def test_process_of_another_user_is_judged_by_its_birth(monkeypatch: pytest.MonkeyPatch):
    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(workers.os, "kill", refuse)
    assert workers.is_alive(os.getpid(), workers.birth_of(os.getpid()))
    assert not workers.is_alive(os.getpid(), "earlier")


def test_birth_is_unknown_where_the_system_does_not_tell():
    assert workers.birth_of(2**30) == ""
