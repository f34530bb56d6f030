"""Drop paragraphs of the context that share no word with the question."""

from __future__ import annotations

import re
from typing import Final

from filters.segments import GAP, edit_prose, is_code
from filters.words import WordFinder

_SHORTEST: Final = 80  # characters of a paragraph that may go; a Chinese one counts as three
_FEWEST: Final = 3  # paragraphs of context: two are read sooner than judged
_QUESTION_CHARS: Final = 600  # a longer paragraph is not the question alone
_LONGEST_TERM: Final = 6  # letters that are compared: endings differ

_WORD: Final = re.compile(r"[a-z0-9\u00c0-\u04ff\u0590-\u06ff]{2,}", re.IGNORECASE)
_CJK: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_STOP_WORDS: Final = frozenset(
    [
        "the", "and", "for", "that", "this", "these", "those", "with", "from", "into", "about",
        "which", "what", "when", "where", "who", "whom", "whose", "why", "how", "does", "did",
        "done", "are", "was", "were", "been", "being", "have", "has", "had", "will", "would",
        "could", "should", "can", "may", "might", "must", "shall", "its", "our", "your", "their",
        "them", "they", "you", "she", "him", "her", "his", "not", "but", "than", "then", "there",
        "here", "over", "under", "between", "after", "before", "during", "please", "tell", "give",
        "list", "name", "explain", "describe", "say", "said", "says", "according", "above",
        "below", "following", "text", "context", "document", "passage", "paragraph", "question",
        "answer", "based", "using", "use", "information", "only", "do", "is", "it", "in", "of",
        "on", "to", "an", "as", "at", "be", "by", "if", "me", "my", "no", "or", "so", "we",
    ]
)  # fmt: skip
_STOP_PAIRS: Final = frozenset(
    [
        "什么", "怎么", "如何", "为什", "哪些", "哪个", "哪里", "多少", "几个", "是否", "请问",
        "请根", "根据", "以下", "以上", "上面", "下面", "文章", "内容", "资料", "材料", "文档",
        "段落", "问题", "回答", "告诉", "一下", "我们", "你们", "他们", "这个", "那个", "可以",
        "能否", "的是", "是什", "是多", "有哪",
    ]
)  # fmt: skip
# Tasks for which every paragraph counts.
_ABOUT_ALL: Final = WordFinder(
    [
        "summarise", "summarize", "summary", "summaries", "sum up", "tl;dr", "tldr", "outline",
        "overview", "abstract", "gist", "key points", "main points", "takeaways", "headline",
        "title", "translate", "translation", "rewrite", "proofread", "edit", "improve", "shorten",
        "extract", "list all", "list every", "each", "every", "all", "everything", "classify",
        "sentiment", "compare", "count", "how many", "review", "critique", "convert", "format",
        "总结", "概括", "归纳", "摘要", "大意", "要点", "提纲", "标题", "翻译", "改写", "润色",
        "校对", "提取", "抽取", "列出", "每个", "每段", "所有", "全部", "全文", "分类", "对比",
        "比较", "统计", "多少个", "评价", "转换", "格式", "综述",
    ]
)  # fmt: skip


def question_of(text: str) -> str:
    """Return what a prompt asks: its first and last paragraph, and those that end in a mark."""
    paragraphs = [piece for piece in GAP.split(text)[::2] if piece.strip()]
    last = len(paragraphs) - 1
    return "\n".join(
        paragraph
        for index, paragraph in enumerate(paragraphs)
        if _asks(paragraph) or (index in (0, last) and len(paragraph) <= _QUESTION_CHARS // 2)
    )


def drop_unrelated(text: str, question: str) -> str:
    """Return `text` without long paragraphs that share no term with `question`.

    Nothing goes where the task is about all of the text, where fewer than three paragraphs are
    judged, or where none or all of them share a term. A paragraph beside a related one stays.
    """
    if "\n" not in text or not question or _ABOUT_ALL.first(question):
        return text
    asked = _terms(question)
    return edit_prose(text, lambda prose: _drop(prose, asked)) if asked else text


def _drop(prose: str, asked: set[str]) -> str:
    pieces = GAP.split(prose)
    paragraphs = pieces[::2]
    judged = [
        index
        for index, paragraph in enumerate(paragraphs)
        if 0 < index < len(paragraphs) - 1 and _is_context(paragraph)
    ]
    related = {index for index in judged if not asked.isdisjoint(_terms(paragraphs[index]))}
    if len(judged) < _FEWEST or not related:
        return prose
    gone = {index for index in judged if related.isdisjoint((index - 1, index, index + 1))}
    return "".join(piece for index, piece in enumerate(pieces) if index // 2 not in gone)


def _is_context(paragraph: str) -> bool:
    weight = len(paragraph) + 2 * sum(map(len, _CJK.findall(paragraph)))
    if weight < _SHORTEST or _asks(paragraph) or "<" in paragraph or "|" in paragraph:
        return False
    return not any(is_code(line) or line[:1] in (" ", "\t") for line in paragraph.split("\n"))


def _asks(paragraph: str) -> bool:
    return len(paragraph) <= _QUESTION_CHARS and paragraph.rstrip()[-1:] in ("?", "？", "؟")


def _terms(text: str) -> set[str]:
    terms = {
        word[:_LONGEST_TERM].rstrip("s")
        for word in _WORD.findall(text.lower())
        if word not in _STOP_WORDS
    }
    for run in _CJK.findall(text):
        terms.update(run[at : at + 2] for at in range(len(run) - 1))
    return terms - _STOP_PAIRS
