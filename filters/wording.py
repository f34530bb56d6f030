"""Tell whether a prompt asks about its own wording, so that no word of it may go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from filters.words import WordFinder

# Tasks whose answer gives the text back, or counts, compares or judges what stands in it.
_ABOUT_WORDING: Final = WordFinder(
    [
        "translate", "translates", "translated", "translating", "translation", "translator",
        "proofread", "proofreading", "proofreader", "rewrite", "rewriting", "rephrase",
        "paraphrase", "reword", "grammar", "spelling", "typo", "typos", "punctuation", "polish",
        "copyedit", "copy-edit", "transcribe", "transcript", "verbatim", "word for word",
        "word by word", "quote", "quotes", "repeat", "repeats", "repeated", "repeating",
        "repetition", "repetitions", "repetitive", "duplicate", "duplicates", "duplicated",
        "duplication", "deduplicate", "dedupe", "redundant", "redundancy", "occurrence",
        "occurrences", "occurs", "how often", "how many times", "count", "counts", "counting",
        "compare", "comparing", "comparison", "contrast", "difference", "differences", "differ",
        "differs", "diff", "identical", "plagiarism", "lyric",
        "lyrics", "song", "poem", "poetry", "chorus", "refrain", "verse", "rhyme", "tone",
        "sentiment", "polite", "politeness", "politely", "greeting", "greetings", "pleasantries",
        "say hello", "say hi", "say thanks", "saying", "reply to", "respond to", "answer this",
        "email", "e-mail", "dialogue", "dialog", "conversation",
        "anaphora", "formatting", "reformat",
        "in french", "in german", "in spanish", "in italian", "in japanese", "in chinese",
        "in english", "in korean", "in russian", "in arabic", "into french", "into german",
        "into spanish", "into chinese", "into english", "into japanese",
        "翻译", "译成", "译为", "译文", "校对", "改写", "润色", "重写", "改成", "语法", "错别字",
        "标点", "逐字", "原文", "引用", "重复", "去重", "冗余", "出现", "次数", "几次", "几遍",
        "统计", "对比", "比较", "区别", "差异", "相同", "一样", "相似", "抄袭", "查重",
        "歌词", "歌曲", "诗", "副歌", "语气", "情感", "礼貌", "问候", "打招呼", "寒暄", "客套",
        "回复", "邮件", "信件", "对话", "台词", "用英语",
        "用英文", "用中文", "用日语", "用法语", "英文怎么说", "怎么说",
    ]
)  # fmt: skip
_ABOUT_GAPS: Final = WordFinder(
    [
        "spaces", "whitespace", "whitespaces", "white space", "blank lines", "empty lines",
        "line breaks", "newlines", "indent", "indented", "indentation", "trailing", "zero-width",
        "zero width", "invisible", "hidden characters", "unicode", "ascii art", "空格", "空白",
        "缩进", "空行", "换行", "零宽", "不可见",
    ]
)  # fmt: skip
_ABOUT_PADDING: Final = WordFinder(
    [
        "token", "tokens", "tokenizer", "tokeniser", "tokenization", "padding", "vocabulary",
        "separator", "separators", "divider", "dashes", "asterisks", "dots", "ascii art", "分词",
        "词表", "填充", "分隔", "破折号", "省略号",
    ]
)  # fmt: skip
_ENDS_CHARS: Final = 1_000  # a task stands before or behind what it is about


def is_about_wording(texts: Iterable[str]) -> bool:
    """Tell whether one of `texts` names a task for which every repetition counts.

    Only the beginning and the end of a text are looked at.
    """
    return _speaks_of(_ABOUT_WORDING, texts)


def is_about_gaps(texts: Iterable[str]) -> bool:
    """Tell likewise whether it asks about white space or characters that nobody sees."""
    return _speaks_of(_ABOUT_GAPS, texts)


def is_about_padding(texts: Iterable[str]) -> bool:
    """Tell likewise whether it asks about a model's tokens or rows of marks."""
    return _speaks_of(_ABOUT_PADDING, texts)


def _speaks_of(words: WordFinder, texts: Iterable[str]) -> bool:
    return any(
        words.first(text[:_ENDS_CHARS]) or words.first(text[-_ENDS_CHARS:]) for text in texts
    )
