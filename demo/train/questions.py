"""Questions with one right answer each, in the many ways a user may type them.

Every question has a key made of what is asked, in what words, and (for story
questions) the whole story.  Keys whose checksum falls in one residue class are
held out: training documents never contain them and the evaluation uses nothing
else (see `held_out`).
"""
import zlib
from dataclasses import dataclass

from facts import DONT_KNOW, FACTS, SMALL_TALK, UNKNOWN
from words import NAMES, OPPOSITE


def held_out(key):
    """True for the one key in ten that belongs to the evaluation."""
    return zlib.crc32(repr(key).encode()) % 10 == 7


@dataclass
class Item:
    """One question with its only right answer."""
    kind: str
    question: str
    answer: str
    key: object


PREFIXES = ["", "", "", "", "", "", "Please tell me: ", "Can you tell me: ", "Tell me, ", "Hi! ", "Hello! ", "Hello, ", "Please: ",
            "I have a question. ", "One question: ", "OK. ", "And ", "Do you know: ", "Now tell me: ", "So, "]


def reword(rng, question):
    """A user's way of typing the question: greeting or request in front, case and final mark at will."""
    prefix = rng.choice(PREFIXES)
    first = question.split()[0].strip("'s?,.")
    if prefix and not prefix.endswith(("! ", ". ")) and first not in NAMES and first != "I":
        question = question[0].lower() + question[1:]
    text = prefix + question
    roll = rng.random()
    if roll < 0.10:
        text = text.lower()
    elif roll < 0.16:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.12:
        text = text.rstrip("?.!")
    elif rng.random() < 0.06 and text.endswith("?"):
        text = text[:-1] + (", please?" if rng.random() < 0.5 else " please?")
    return text


def pick_item(rng, make, test):
    """The first item from `make` on the wanted side of the held-out split."""
    while True:
        item = make(rng)
        if held_out(item.key) == test:
            return item


# --------------------------------------------------------------------------- questions without a story
SUM_FORMS = ["What is {a} + {b}?", "What's {a} + {b}?", "{a} + {b} = ?", "{a} + {b}", "{a}+{b}", "{a}+{b}=", "{a} + {b} =", "What is {a}+{b}?",
             "What's {a}+{b}?", "How much is {a} + {b}?", "Add {a} and {b}.", "What is {a} plus {b}?", "What is the sum of {a} and {b}?",
             "{a} plus {b}", "Calculate {a} + {b}.", "Compute {a} + {b}.", "Can you add {a} and {b}?", "Tell me what {a} + {b} is.", "How much is {a} plus {b}?",
             "Do you know what {a} + {b} is?", "Can you tell me what {a} plus {b} is?", "What do you get when you add {a} and {b}?"]
MINUS_FORMS = ["What is {a} - {b}?", "What's {a} - {b}?", "{a} - {b} = ?", "{a} - {b}", "{a}-{b}", "What is {a}-{b}?", "How much is {a} - {b}?",
               "What is {a} minus {b}?", "Take {b} away from {a}.", "{a} minus {b}", "Calculate {a} - {b}.", "How much is {a} minus {b}?"]
OPPOSITE_FORMS = ["What is the opposite of {w}?", "What's the opposite of {w}?", "The opposite of {w}?", "opposite of {w}", "Opposite of {w}?",
                  "Tell me the opposite of {w}.", "Do you know the opposite of {w}?", "Can you tell me the opposite of {w}?",
                  "Give me the opposite of {w}.", "Which word is the opposite of {w}?", "What word means the opposite of {w}?",
                  "What is the opposite of the word {w}?", "Name the opposite of {w}.", "Say the opposite of {w}."]


def make_sum(rng):
    a, b, form = rng.randrange(10), rng.randrange(10), rng.choice(SUM_FORMS)
    q = reword(rng, form.format(a=a, b=b))
    return Item("sums", q, f"{a} + {b} is {a + b}.", ("sum", a, b, form))


def make_difference(rng):
    a, form = rng.randrange(10), rng.choice(MINUS_FORMS)
    b = rng.randrange(a + 1)
    q = reword(rng, form.format(a=a, b=b))
    return Item("differences", q, f"{a} - {b} is {a - b}.", ("difference", a, b, form))


def make_opposite(rng):
    w, form = rng.choice(list(OPPOSITE)), rng.choice(OPPOSITE_FORMS)
    q = reword(rng, form.format(w=w))
    return Item("opposites", q, f"The opposite of {w} is {OPPOSITE[w]}.", ("opposite", w, form))


def make_fact(rng):
    answer, forms = rng.choice(FACTS)
    form = rng.choice(forms)
    q = reword(rng, form)
    return Item("facts", q, answer, ("fact", q))


def make_small_talk(rng):
    answer, forms = rng.choice(SMALL_TALK)
    q = rng.choice(forms)
    roll = rng.random()
    if roll < 0.2:
        q = q.lower()
    if rng.random() < 0.25:
        q = q.rstrip("?.!")
    return Item("small talk", q, answer, ("talk", q, 0))


def make_unknown(rng):
    roll = rng.random()
    if roll < 0.2:  # sums that are too large
        a, b = rng.randrange(10, 1000), rng.randrange(2, 1000)
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
        form = rng.choice(SUM_FORMS + MINUS_FORMS + ["What is {a} x {b}?", "What is {a} times {b}?"])
        q = reword(rng, form.format(a=a, b=b))
        return Item("unknown", q, "I only know sums of small numbers.", ("unknown", q))
    if roll < 0.3:
        land = rng.choice("Brazil India Kenya Peru Canada Poland Turkey Chile Mexico Cuba Nepal Ghana Wales Texas".split())
        q = reword(rng, f"What is the capital of {land}?")
    else:
        q = reword(rng, rng.choice(UNKNOWN))
    return Item("unknown", q, DONT_KNOW, ("unknown", q))


# --------------------------------------------------------------------------- questions about a story
def story_item(rng, story):
    """A question about the story."""
    kind, forms, answer = rng.choice(story.questions)
    form = rng.choice(forms)
    return Item("story: " + kind, reword(rng, form), answer, ("story", story.string, form))
