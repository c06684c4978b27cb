"""The nano pair's world: short conversations made from templates, all of them written for this kit.

A template knows its words, so any number of different conversations can be made, and the same ones every time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

SYSTEM = "You are a tiny test model."
"""The system message that the nano chat template puts first when a conversation brings none."""

Turn = tuple[str, str]
"""What the user says, and the answer."""

COLOURS = ("red", "blue", "green", "black")
ANIMALS = ("cat", "dog", "horse", "duck", "fox")
FOODS = ("bread", "soup", "cheese", "apples")
PLACES = ("garden", "forest", "river", "market")
NAMES = ("Ada", "Ben", "Cleo", "Dan")
TIMES = ("morning", "evening", "winter", "summer")
TOOLS = ("lamp", "rope", "spoon", "basket")
DEEDS = ("sleeps", "waits", "runs", "sings")
SIZES = ("small", "big", "old", "quick")
OPERATIONS = (("add", "+"), ("subtract", "-"), ("multiply", "*"))
GROUPS = {"colours": COLOURS, "animals": ANIMALS, "foods": FOODS, "places": PLACES, "tools": TOOLS}


class _Chooser:
    """Picks words by the one method of `random.Random` whose numbers no version of Python changes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def pick(self, items: Sequence[str]) -> str:
        return items[self.below(len(items))]

    def several(self, items: Sequence[str], count: int) -> list[str]:
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]


def _chat(c: _Chooser) -> Turn:
    kind = c.below(4)
    if kind == 0:
        name = c.pick(NAMES)
        return (
            f"Hello, I am {name}.",
            f"Hello {name}! It is good to meet you. "
            f"{c.pick(('How can I help?', 'What shall we talk about?'))}",
        )
    if kind == 1:
        place = c.pick(PLACES)
        return f"What can I do at the {place}?", (
            f"At the {place} you can {c.pick(('walk', 'rest', 'read', 'sit'))} "
            f"and look for a {c.pick(ANIMALS)}. "
            f"The best time is {c.pick(('in the ', 'late in the '))}{c.pick(TIMES)}."
        )
    if kind == 2:
        food = c.pick(FOODS)
        return f"Do you like {food}?", (
            f"{c.pick(('Yes, I do.', 'No, not much.', 'I am not sure.'))} A model cannot eat, but {food} "
            f"{c.pick(('sounds good', 'sounds warm', 'sounds fine'))} to me."
        )
    return "Thank you!", c.pick(("You are welcome!", "You are welcome. Come back soon!", "With pleasure!"))


def _story(c: _Chooser) -> Turn:
    animal, size, colour, place = c.pick(ANIMALS), c.pick(SIZES), c.pick(COLOURS), c.pick(PLACES)
    return f"Tell me about a {animal}.", (
        f"The {size} {animal} is {colour}. "
        f"It lives near the {place} and {c.pick(DEEDS)} in the {c.pick(TIMES)}. "
        f"{c.pick(NAMES)} gives it {c.pick(FOODS)} every day."
    )


def _list(c: _Chooser) -> Turn:
    kind = c.pick(tuple(GROUPS))
    count = 2 + c.below(3)
    return f"List {count} {kind}.", "\n".join(f"- {word}" for word in c.several(GROUPS[kind], count))


def _summary(c: _Chooser) -> Turn:
    name, place, tool, time = c.pick(NAMES), c.pick(PLACES), c.pick(TOOLS), c.pick(TIMES)
    text = (
        f"In the {time} {name} went to the {place}. The {c.pick(SIZES)} {c.pick(ANIMALS)} was there. "
        f"{name} took the {tool} home."
    )
    return f"Summarise: {text}", f"{name} took the {tool} from the {place}."


def _code(c: _Chooser) -> Turn:
    word, sign = OPERATIONS[c.below(len(OPERATIONS))]
    first, second = c.several(("a", "b", "x", "y"), 2)
    return f"Write code to {word} {first} and {second}.", (
        f"```python\ndef {word}({first}, {second}):\n    return {first} {sign} {second}\n```"
    )


def _maths(c: _Chooser) -> Turn:
    if c.below(2):
        start = 1 + c.below(5)
        end = start + 3 + c.below(4)
        return f"Count from {start} to {end}.", ", ".join(str(n) for n in range(start, end + 1)) + "."
    a, b = 1 + c.below(9), 1 + c.below(9)
    return f"What is {a} + {b}?", f"{a} + {b} = {a + b}"


def _rewriting(c: _Chooser) -> Turn:
    words = c.several(COLOURS + ANIMALS, 3 + c.below(3))
    return f"Repeat: {', '.join(words)}", ", ".join(words)


def _extraction(c: _Chooser) -> Turn:
    name, tool, place = c.pick(NAMES), c.pick(TOOLS), c.pick(PLACES)
    text = f"{name} has a {c.pick(COLOURS)} {tool} in the {place}."
    return f"Who, what, where? {text}", f"who: {name}\nwhat: {tool}\nwhere: {place}"


CLASSES: dict[str, Callable[[_Chooser], Turn]] = {
    "chat": _chat,
    "story": _story,
    "list": _list,
    "summary": _summary,
    "code": _code,
    "maths": _maths,
    "rewriting": _rewriting,
    "extraction": _extraction,
}


def conversations(seed: int, count: int) -> Iterator[list[Turn]]:
    """Make conversations of one or two turns.

    Args:
        seed: the same seed makes the same conversations.
        count: how many.
    """
    chooser = _Chooser(seed)
    names = tuple(CLASSES)
    for _ in range(count):
        yield [CLASSES[chooser.pick(names)](chooser) for _ in range(1 + chooser.below(4) // 3)]


def chat_text(turns: Sequence[Turn]) -> str:
    """A finished conversation as the nano chat template writes it."""
    blocks = [("system", SYSTEM)]
    for question, answer in turns:
        blocks += [("user", question), ("assistant", answer)]
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in blocks)
