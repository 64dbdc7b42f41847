"""The prompts are files that an operator may change; their content is their version (R8.6)."""

import shutil
from pathlib import Path

import pytest

from compaction.validation import HEADINGS
from gateway.models import find_config_dir
from gateway.prompts import PromptsError, load_prompts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(find_config_dir() / "prompts", tmp_path / "prompts"))


def test_the_shipped_prompts_load():
    prompts = load_prompts()
    places = [f"\n{prompts.system}\n".index(f"\n## {heading}\n") for heading in HEADINGS]
    assert places == sorted(places)  # R8.1: the instruction shows the five headings in their order
    assert all("{limit}" in text for text in (prompts.segment, prompts.session, prompts.fold))
    assert "{problems}" in prompts.repair


def test_the_version_is_a_function_of_the_texts(folder):
    assert load_prompts(folder) == load_prompts()
    assert len(load_prompts().version) == 12


@pytest.mark.parametrize("name", ["system", "segment", "session", "fold", "repair"])
def test_any_change_of_wording_is_another_version(folder, name):
    path = folder / f"{name}.md"
    path.write_text(path.read_text() + "One word more.")
    assert load_prompts(folder).version != load_prompts().version


def test_line_ends_of_a_checkout_are_no_change(folder):
    path = folder / "system.md"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert load_prompts(folder).version == load_prompts().version


@pytest.mark.parametrize(
    ("name", "part"), [("fold", "{limit}"), ("repair", "{problems}"), ("system", "## Key Decisions")]
)
def test_a_prompt_that_lacks_what_the_gateway_relies_on_is_an_error(folder, name, part):
    path = folder / f"{name}.md"
    path.write_text(path.read_text().replace(part, ""))
    with pytest.raises(PromptsError, match=rf"{name}\.md: lacks '.*{part[3:6]}"):
        load_prompts(folder)


def test_a_missing_prompt_is_an_error_that_names_the_file(folder):
    (folder / "fold.md").unlink()
    with pytest.raises(PromptsError, match=r"fold\.md: cannot be read"):
        load_prompts(folder)


def test_a_prompt_in_another_encoding_is_an_error(folder):
    (folder / "fold.md").write_bytes("{limit} é".encode("latin-1"))
    with pytest.raises(PromptsError, match=r"fold\.md: cannot be read"):
        load_prompts(folder)
