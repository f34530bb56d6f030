"""Terms found in a text, and what is said of them."""

from __future__ import annotations

import re

import pytest

from filters.glossary import Glossary, bundled

DOMAINS = ("finance", "legal", "medical")


@pytest.mark.parametrize(
    ("terms", "text", "expected"),
    [
        (["dose"], "A Dose of it", ["dose"]),
        (["dose"], "an overdose", []),
        (["dose"], "doses", []),
        (["PE"], "pe teacher", []),
        (["PE"], "a PE.", ["PE"]),
        (["AF", "atrial fibrillation"], "Atrial fibrillation (AF)", ["atrial fibrillation", "AF"]),
        (["CT", "CT scan"], "a CT scan", ["CT scan"]),
        (["CT scan", "scan report"], "CT scan report", ["CT scan"]),
        (["心电图"], "请看心电图结果", ["心电图"]),
        (["ECG"], "做ECG检查", ["ECG"]),
        (["dose"], "İ dose", ["dose"]),
        (["a", "b"], "b a b", ["b", "a"]),
        (["a"], "", []),
    ],
)
def test_a_term_is_found_where_it_is_meant(
    terms: list[str], text: str, expected: list[str]
) -> None:
    """Not in another word, and of those that overlap the longest, in the order they come."""
    glossary = Glossary(dict.fromkeys(terms, "x"))
    assert expected == glossary.used_in([text], 10)
    assert not expected or glossary.may_be_used_in(["none", text])


def test_texts_without_any_term_are_told_at_once() -> None:
    """Two of them are no term together."""
    glossary = Glossary({"CT scan": "x", "PE": "y"})
    assert not glossary.may_be_used_in(["a CT", "scan of a pe"])
    assert glossary.may_be_used_in(["a ct", "ct Scan"])


def test_a_longer_conversation_adds_behind_what_a_shorter_one_had() -> None:
    """So that a model server finds the beginning of the prompt again."""
    glossary = Glossary({"aa": "1", "bb": "2"})
    first, both = glossary.used_in(["bb"], 9), glossary.used_in(["bb", "aa bb"], 9)
    assert (["bb"], ["bb", "aa"]) == (first, both)
    assert glossary.write(both).startswith(glossary.write(first))


def test_the_heading_is_in_the_language_of_the_terms() -> None:
    """Chinese where all of them are."""
    glossary = Glossary({"房颤": "心律不齐", "AF": "a rhythm"})
    assert "术语表：\n- 房颤: 心律不齐" == glossary.write(["房颤"])
    assert glossary.write(["房颤", "AF"]).startswith("Glossary:\n")


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_bundled_term_has_one_short_meaning(domain: str) -> None:
    """In Chinese and in English, some dozens in each domain."""
    terms = bundled(domain)
    assert len(terms) >= 30
    assert [] == [term for term, said in terms.items() if not (term and 0 < len(said) <= 120)]
    assert any(re.search(r"[\u4e00-\u9fff]", term) for term in terms)
    assert list(terms) == Glossary(terms).used_in(list(terms), len(terms))
