"""The words for tokens: one vocabulary of arguments, coordinates of results and plots."""

CLS, SPATIAL, ALL, EACH = "cls", "spatial", "all", "each"
PARTS = (CLS, SPATIAL)  # of a sequence, and whose attention is looked at
POOLED = (CLS, SPATIAL, ALL)  # what one vector for each image is made of
PROBED = (*POOLED, EACH)
# The same in names of kept results, and in results that were kept with other words.
KEPT = {CLS: "first", SPATIAL: "rest", ALL: "mean"}
CURRENT = {kept: word for word, kept in KEPT.items()}


def require_word(word, known, name="tokens"):
    """Returns `word` if it is among `known`.

    Args:
        word: what was given for the argument `name`.
        known: tuple of words.
        name: of the argument, for the error.

    Raises:
        ValueError: for other words; it tells what a word of earlier results is called.
    """
    if isinstance(word, str) and word in known:
        return word
    current = CURRENT.get(word) if isinstance(word, str) else None
    hint = f"; its name is {current!r}" if current else ""
    raise ValueError(f"Expected {name} to be one of {known}. Received: {name}={word!r}{hint}")


def current_words(result):
    """A result with today's words for tokens, whichever it was kept with.

    Args:
        result: DataArray or Dataset, whose dim `tokens` or attribute `tokens` holds words, if any.

    Returns:
        The result; `"first"`, `"rest"` and `"mean"` are `"cls"`, `"spatial"` and `"all"` there.
    """
    if "tokens" in result.dims and "tokens" in result.coords:
        words = [str(word) for word in result["tokens"].values]
        result = result.assign_coords(tokens=[CURRENT.get(word, word) for word in words])
    word = result.attrs.get("tokens")
    known = isinstance(word, str) and word in CURRENT
    return result.assign_attrs(tokens=CURRENT[word]) if known else result
