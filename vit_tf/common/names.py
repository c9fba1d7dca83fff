"""Choosing names from a list: shell patterns, sites, and the words of errors that name names."""

import difflib
import fnmatch
import functools
import operator
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import lazy_loader

# A password in an address, as a pattern of `re` and of TensorFlow, and what stands in its place.
PASSWORD = r"([a-zA-Z][\w+.-]*://[^\s/:@]*):[^\s/]*@", r"\1:***@"
Value = TypeVar("Value")
NAMED = 10
# Least share of letters in common with a near match, and how far it may be behind the nearest.
_NEAR, _BESIDE = 0.7, 0.1


def format_list(names: Iterable, separator: str = ", ") -> str:
    """The first 10 of some names, and how many more there are, as words."""
    names = [str(name) for name in names]
    shown = separator.join(names[:NAMED])
    more = len(names) - NAMED
    if more <= 0:
        return shown
    return f"{shown}{' and' if separator == ', ' else f'{separator}and'} {more} more"


def join_words(names: Iterable[str]) -> str:
    """All of some names as words: `"A, B and C"`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def without_password(text: str | os.PathLike) -> str:
    """A text with `***` for passwords in addresses: `"ftp://user:***@host/a"`."""
    return re.sub(*PASSWORD, os.fspath(text))


def file_error(error: Exception, path: object) -> str:
    """What an exception says of a file, without the path next to which it stands."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    words = str(error)
    for shown in (f" {str(path)!r}", f" {path!r}", f"{path}; "):
        words = words.replace(shown, "")
    return words


def unknown_name(what: str, received: object, known: Iterable) -> ValueError:
    """The `ValueError` for a name that is not in a list, with near matches."""
    known = [str(name) for name in known]
    near = near_names(str(received), known)
    hint = (
        f"Did you mean {format_list(near)}?" if near else f"Expected one of: {format_list(known)}"
    )
    hidden = without_password(received) if isinstance(received, str) else received
    return ValueError(f"Unknown {what}: {hidden!r}. {hint}")


def near_names(received: str, known: Iterable) -> list[str]:
    """At most 5 names that begin as the one received, have its letters, or are most like it."""
    received = received.lower()

    def similarity_of(name: str) -> float:
        if received and (name.startswith(received) or sorted(name) == sorted(received)):
            return 1.0
        return difflib.SequenceMatcher(None, name, received).ratio()

    similarity = {name: similarity_of(name.lower()) for name in known}
    least = max(_NEAR, max(similarity.values(), default=0) - _BESIDE)
    near = [name for name in known if similarity[name] >= least]
    return sorted(near, key=similarity.__getitem__, reverse=True)[:5]


def attach_public(
    package: str,
    file: str,
    other_names: Mapping[str, tuple[str, dict[str, Any]]] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package that imports the names in its stub.

    A name is imported when it is first used. An `AttributeError` lists near matches. `other_names`
    maps names that other libraries use to public names here, with keyword arguments.
    """
    import_public, list_names, public = lazy_loader.attach_stub(package, file)

    def import_name(name: str) -> Any:
        if name in public:
            return import_public(name)
        if name in other_names:
            public_name, options = other_names[name]
            function: Any = import_public(public_name)
            return functools.partial(function, **options) if options else function
        near = near_names(name, public)
        hint = f". Did you mean {' or '.join(near)}?" if near else ""
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")

    return import_name, list_names, public


def lookup(what: str, received: object, known: Mapping[Any, Value]) -> Value:
    """`known[received]`, or a `ValueError` that lists near matches."""
    if received not in known:
        raise unknown_name(what, received, known)
    return known[received]


def match(patterns: Iterable, names: Iterable) -> tuple[str, ...]:
    """The names that fit any of the patterns; a ValueError for a pattern that fits none."""
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise unknown_name("layer or pattern", pattern, names)
    return tuple(n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns))


def as_patterns(patterns: Iterable) -> tuple[str, ...]:
    """The patterns of a call, of which each may be a list of them, as a flat tuple of text."""
    flat = [
        p
        for pattern in patterns
        for p in (pattern if isinstance(pattern, list | tuple) else [pattern])
    ]
    for pattern in flat:
        if not isinstance(pattern, str):
            raise ValueError(
                "Expected patterns of layer names to be text, such as 'block*/mlp/sum'. "
                f"Received: {pattern!r}"
            )
    return tuple(flat)


def as_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Names as a tuple; a text is one name."""
    return (names,) if isinstance(names, str) else tuple(names)


def as_sizes(
    name: str, sizes: Iterable, form: str, counts: Container | None = None
) -> tuple[int, ...]:
    """Whole numbers above 0 as a tuple, of `counts`; a ValueError expects the `form`."""
    try:
        integers = tuple(operator.index(size) for size in sizes)
    except TypeError:
        integers = (0,)  # which is refused
    if (counts is not None and len(integers) not in counts) or min(integers, default=1) < 1:
        raise ValueError(f"Expected {name} to be {form}. Received: {name}={sizes!r}")
    return integers


def as_image_shape(image_shape: Iterable, counts: tuple = (3,)) -> tuple:
    """An `image_shape`, (height, width, channels) in pixels, of so many numbers, as ints."""
    if isinstance(image_shape, str):
        raise ValueError(
            "Expected image_shape to be (height, width, channels) in pixels. "
            f"Received: {image_shape!r}; to create a variant by its name, call "
            f"from_variant({image_shape!r}, image_shape=(224, 224, 3))"
        )
    return as_sizes("image_shape", image_shape, "(height, width, channels) in pixels", counts)


def match_sites(selected: Iterable, sites: Iterable) -> frozenset[str]:
    """The sites named in `selected`, where `"block06"` means every site of that block."""
    owners = dict.fromkeys(site.rpartition("/")[0] for site in sites if "/" in site)
    for name in selected:
        if name not in sites and name not in owners:
            raise unknown_name("without_skips", name, [*owners, *sites])
    return frozenset(s for s in sites if s in selected or s.rpartition("/")[0] in selected)


def are_named(outputs: Iterable[str]) -> bool:
    """Whether outputs have names, and not indices in a list. False for none."""
    return not all(name.split("/")[0].isdecimal() for name in outputs)


def last_part(tap: str) -> str:
    """The last part of the name of a tap, or of a pattern, without the number of the call."""
    return re.sub(r"(@[\d*?]+|\*)$", "", tap).rpartition("/")[2]


def is_part(tap: str, *parts: str) -> bool:
    """Whether a tap is one of these parts of a layer, and not a layer that has such a name."""
    return "/" in tap and last_part(tap) in parts
