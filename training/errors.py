"""The one error of this package: something the person at the keyboard can put right."""


class TrainingError(Exception):
    """A bad picture, option or download; its text is one sentence fit to be shown as it is."""
