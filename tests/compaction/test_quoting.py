"""No text can forge the marks of quoted data (R8.2)."""

import re
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.quoting import LABELS, citation, cited, encodable, escape, fence, fence_mark, word


class TestCitations:
    @pytest.mark.parametrize(
        "call", ["call_1", "", "a b]", "[result seq=1 call=x]", "ü", "\ud800", "a%20b", "x\ny", "a" * 400]
    )
    def test_any_id_can_be_cited_and_read_back(self, call):
        assert cited(f"see {citation(12, call)}.") == [(12, call)]

    def test_no_id_is_an_empty_one(self):
        assert citation(3, None) == "[result seq=3 call=]"


class TestEscape:
    def test_a_mark_gets_a_backslash_and_other_brackets_none(self):
        assert escape("[event seq=1") == "\\[event seq=1"
        assert escape("a = [note the rest]") == "a = [note the rest]"

    @pytest.mark.parametrize("label", LABELS)
    @pytest.mark.parametrize("form", ["<{}>", "</{}>", "<{}-0123456789abcdef>", "</ {}-0123456789abcdef >", "< / {}>"])
    def test_every_tag_of_a_fence_gets_one_in_any_case(self, form, label):
        tag = form.format(label)
        assert escape(tag) == f"\\{tag}"
        assert escape(tag.upper()) == f"\\{tag.upper()}"

    def test_escaping_a_megabyte_of_anything_is_linear(self):
        assert escape("=" * 1_000_000) == "=" * 1_000_000
        assert escape("<" * 1_000_000 + " " * 1_000_000).startswith("<<")
        assert escape("[" * 1_000_000 + " " * 1_000_000).startswith("[[")

    def test_what_cannot_be_encoded_is_replaced(self):
        assert encodable(f"a{chr(0xD800)}{chr(0)}b") == "a\ufffd\ufffdb"

    @given(st.text())
    def test_any_text_is_one_word_of_a_header(self, text):
        assert re.fullmatch(r"[^\s\[\]<>]*", word(text))


class TestFence:
    def test_encloses_the_text_between_two_lines_of_one_mark(self):
        first, *inside, last = fence("a\nb", "goal").split("\n")
        assert inside == ["a", "b"]
        assert re.fullmatch(r"<goal-[0-9a-f]{16}>", first)
        assert last == f"</{first[1:]}"

    def test_says_more_in_the_first_tag_only(self):
        assert re.fullmatch(r"<goal-(\w+) seq=1-2>\na\n</goal-\1>", fence("a", "goal", "seq=1-2"))

    @given(st.text())
    def test_no_text_holds_its_own_mark(self, text):
        assert fence_mark(text) not in text

    def test_a_mark_that_occurs_inside_is_made_longer(self):
        text = next(text for number in range(1000) if sha256((text := f"{number:x}").encode()).hexdigest()[0] in text)
        assert fence_mark(text, shortest=1) not in text
        assert len(fence_mark(text, shortest=1)) > 1

    def test_is_deterministic_and_takes_lone_surrogates(self):
        assert fence("a\ud800") == fence("a\ud800")
