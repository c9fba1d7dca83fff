"""Modules of the package in place of its own, for what is keyed by the code."""

from vit_tf.analysis.engine import store


def replace_modules(folder, monkeypatch):
    """A function of a module's name and its text that makes or changes it; there are no others."""
    files = {}
    monkeypatch.setattr(store, "_module_files", lambda: files)

    def write(name, text):
        files[name] = folder / f"{name}.py"
        files[name].write_text(text)
        forget()

    forget()
    return write


def forget():
    """The sources are read again."""
    for cached in (store._code_of_modules, store._read_module, store._listed_in_stub):
        cached.cache_clear()
    store.base_code.cache_clear()
