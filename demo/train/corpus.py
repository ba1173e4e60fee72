"""Rule-based corpus of the Hilo demo model: makes documents from a seed, with no third-party text.

A document is either plain text or a chat.  Chats mix stories on a wished
subject, questions about a story, one-digit sums, opposites, facts and small
talk.  The words are in words.py, the facts in facts.py, the stories in
stories.py and plots.py, the questions in questions.py.

Run `python corpus.py [SEED]` to print samples.
"""
import random

from facts import SYSTEM
from plots import make_scene, make_story
from questions import (held_out, make_difference, make_fact, make_opposite, make_small_talk, make_sum, make_unknown, pick_item,
                       story_item)
from words import ANIMALS, BOYS, COLOURS, FEELINGS, FOOD, GIRLS, NUMBERS, PLACES, TOYS, TRAITS, an, cap_sentence

REQUESTS = ["Tell me a story about {}.", "Write a story about {}.", "Tell me a story about {}.", "Can you tell me a story about {}?",
            "Please tell me a story about {}.", "I want a story about {}.", "Tell me about {}.", "Write a short story about {}.",
            "Tell me a short story about {}.", "A story about {}, please.", "Could you write a story about {}?", "story about {}",
            "Please write a story about {}.", "Make up a story about {}.", "I would like to hear a story about {}.",
            "Give me a story about {}.", "Write a little story about {}.", "Tell a story about {}.", "Tell me a tale about {}."]
ANY_REQUESTS = ["Tell me a story.", "Write a story.", "Can you tell me a story?", "Please tell me a story.", "I want to hear a story.",
                "Tell me another story.", "Tell me something nice.", "Write a short story.", "Tell me a short story.", "A story, please.",
                "Do you know a story?", "Once more, a story please."]


def make_request(rng, story):
    """A user's wish that the story fulfils."""
    h, f, text = story.hero, story.friend, story.string
    toy = an(story.colour) + " " + story.toy if f"{story.colour} {story.toy}" in text else None
    heroes = [h.short] * 3 + [h.kind if h.named and h.kind in ("girl", "boy") else h.short]
    hero = rng.choice(heroes)
    hero = f"a {hero}" if hero in ("girl", "boy") else hero
    if h.named and h.short != h.name and rng.random() < 0.6:
        hero = rng.choice((f"{an(h.kind)} named {h.name}", f"{an(h.kind)} called {h.name}"))
    elif h.short == h.name and f" {h.kind} named" in text and rng.random() < 0.2:
        hero = f"a {h.kind} named {h.name}"
    for trait in TRAITS:
        if f"{trait} {h.kind}" in text and hero in (h.short, f"a {h.kind}") and hero.startswith("a") and rng.random() < 0.6:
            hero = f"{an(trait)} {h.kind}"
    subjects = [hero] * 4 + [f"{hero} and {f.short}"] * 2
    if toy:
        subjects += [f"{hero} and {toy}"] * 3 + [toy]
        subjects += [f"{hero} and {an(story.toy)}"]
    if story.place in text:
        subjects += [f"{hero} {story.prep} the {story.place}", rng.choice((f"the {story.place}", an(story.place)))]
    if rng.random() < 0.12:
        subjects = [t.format(toy=story.toy, a_toy=an(story.toy)) for t in story.topic]
    if rng.random() < 0.1:
        request = rng.choice(ANY_REQUESTS)
    else:
        request = rng.choice(REQUESTS).format(rng.choice(subjects))
    roll = rng.random()
    if roll < 0.12:
        request = request.lower()
    if rng.random() < 0.15:
        request = request.rstrip(".?")
    return request

TELL = ["{s} {q}", "{s} {q}", "{s}\n{q}", "{s}\n\n{q}", "Here is a story: {s} {q}", "Read this story: {s} {q}", "Story: {s}\nQuestion: {q}",
        "Read the text and answer. {s} {q}"]


def simple_turns(rng, test=False):
    """One exchange that needs no story, as an Item."""
    make = rng.choices((make_sum, make_difference, make_opposite, make_fact, make_small_talk, make_unknown), (26, 7, 14, 30, 10, 8))[0]
    if make in (make_small_talk, make_unknown):
        return make(rng)
    return pick_item(rng, make, test)


def story_questions(rng, story, n, test=False):
    """Up to n different questions about the story, all on one side of the split."""
    items, seen = [], set()
    for _ in range(40):
        if len(items) == n:
            break
        item = story_item(rng, story)
        if item.answer not in seen and held_out(item.key) == test:
            seen.add(item.answer)
            items.append(item)
    return items


def story_chat(rng, long=False, focus=False):
    """Turns around one story: told by the assistant or by the user, then questions."""
    turns = []
    roll = rng.random()
    if roll < 0.50:
        story = make_story(rng)
        turns.append((make_request(rng, story), story.string))
        items = story_questions(rng, story, rng.choice((5, 6, 7, 8) if focus else (0, 2, 3, 4, 5)))
    elif roll < 0.56:
        story = make_story(rng)
        cut = rng.choice((1, 1, 2, 3))
        start, rest = (" ".join(cap_sentence(t) for t in part) for part in (story.text[:cut], story.text[cut:]))
        turns.append((rng.choice(("Continue this story: ", "Continue: ", "Please continue the story: ", "How does this story go on? ", "Finish this story: ")) + start, rest))
        items = story_questions(rng, story, rng.choice((0, 1, 2)))
    else:
        story = make_story(rng) if rng.random() < (0.35 if focus else 0.55) else make_scene(rng)
        items = story_questions(rng, story, rng.choice((4, 5, 6, 7) if focus else (1, 2, 3)))
        if items:
            form = rng.choice(TELL)
            turns.append((form.format(s=story.string, q=items[0].question), items[0].answer))
            items = items[1:]
    for i, item in enumerate(items):
        if (long or rng.random() < 0.1) and rng.random() < 0.4:
            other = simple_turns(rng)
            turns.append((other.question, other.answer))
        turns.append((item.question, item.answer))
    return turns


def make_chat(rng, long=False, focus=False):
    """A chat as a list of (role, text)."""
    turns = []
    while True:
        if rng.random() < (0.8 if focus else 0.7 if long else 0.5):
            turns += story_chat(rng, long, focus)
        else:
            for _ in range(rng.choice((1, 2, 3, 4))):
                item = simple_turns(rng)
                turns.append((item.question, item.answer))
        if rng.random() > (0.75 if long else 0.25):
            break
    doc = [("system", rng.choice(SYSTEM))] if rng.random() < 0.2 else []
    for user, assistant in turns:
        doc += [("user", user), ("assistant", assistant)]
    return doc


def make_first_person(rng):
    """A short plain text that a child could write about itself."""
    name, friend = rng.sample(GIRLS + BOYS, 2)
    animal, colour, toy = rng.choice(ANIMALS), rng.choice(COLOURS), rng.choice(TOYS)
    (prep, place), (_, home) = rng.sample(PLACES, 2)
    n, food = rng.choice(NUMBERS), rng.choice(FOOD)
    out = [rng.choice((f"My name is {name}, and I live near the {home}.", f"My name is {name} and I live near the {home}.",
                       f"My name is {name} and I am {rng.choice(NUMBERS[3:])} years old.", f"I am {name}, and I live near the {home}.")),
           rng.choice((f"I have {an(colour)} {toy}.", f"My best toy is {an(colour)} {toy}.")),
           rng.choice((f"My friend is called {friend}.", f"I often play with {friend}.")),
           rng.choice((f"Today we went to the {place}.", f"We like to play {prep} the {place}.")),
           rng.choice((f"There we saw {an(animal)}.", f"Once we met {an(animal)} there.")),
           rng.choice((f"The {animal} was very {rng.choice(TRAITS)}.", f"We gave the {animal} {n} {food}.")),
           rng.choice(("I want to go there again.", "That was a very good day.", f"In the evening I was {rng.choice(FEELINGS)}."))]
    return " ".join(out)


def make_plain(rng):
    """A plain text document."""
    roll = rng.random()
    if roll < 0.80:
        return make_story(rng).string
    if roll < 0.88:
        return make_first_person(rng)
    items = [pick_item(rng, rng.choice((make_sum, make_opposite, make_fact, make_fact)), False) for _ in range(rng.choice((1, 2, 3)))]
    if rng.random() < 0.5:
        return "\n".join(f"Question: {i.question}\nAnswer: {i.answer}" for i in items)
    if rng.random() < 0.5:
        return f"{items[0].question} {items[0].answer}"
    return " ".join(i.answer for i in items)


REPEAT = ["Repeat: {}", "Repeat after me: {}", "Say: {}", "Please repeat: {}", "Say this: {}", "Copy this: {}", "Write this again: {}"]


def make_repeat(rng):
    """A chat in which the assistant says again what the user said.

    Words that are used alike (numbers, feelings) would otherwise stay alike to the model, too.
    """
    doc = []
    for _ in range(rng.choice((1, 2, 3, 4))):
        if rng.random() < 0.5:
            text = cap_sentence(rng.choice(make_story(rng).text))
        else:
            pools = [rng.choice((NUMBERS, NUMBERS, FEELINGS, FEELINGS, COLOURS, ANIMALS, TOYS, GIRLS, BOYS)) for _ in range(rng.choice((1, 2)))]
            words = [rng.choice(rng.choice(pools)) for _ in range(rng.randrange(3, 9))]
            text = rng.choice((" ", ", ")).join(words)
        doc += [("user", rng.choice(REPEAT).format(text)), ("assistant", text)]
    return doc


def make_document(rng, long=False, focus=False):
    """A document: a string (plain) or a list of (role, text) (chat).

    With `long` chats have more turns; with `focus` there are more questions about each story, and exercises in repeating.
    """
    if focus and rng.random() < 0.1:
        return make_repeat(rng)
    if rng.random() < (0.12 if focus else 0.22):
        return make_plain(rng)
    return make_chat(rng, long, focus)


if __name__ == "__main__":
    import sys
    sample = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for _ in range(12):
        doc = make_document(sample)
        print(doc if isinstance(doc, str) else "\n".join(f"[{role}] {text}" for role, text in doc), end="\n\n")
