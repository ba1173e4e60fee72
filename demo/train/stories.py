"""What a story is made of: its people, animals and things, its sentences and the questions it can answer."""
import random
import re
from dataclasses import dataclass, field

from words import (ANIMALS, BOYS, COLOURS, FEELINGS, GIRLS, NUMBERS, PLACES, THINGS, TOYS, TRAITS, an, cap)


@dataclass
class Being:
    """A person or animal of a story, with the words that stand for it."""
    name: str        # in the middle of a sentence: "Anna", "the dog"
    intro: str       # at the first mention: "a brave girl named Anna", "a little dog"
    he: str
    him: str
    his: str
    kind: str        # "girl", "boy" or the animal
    short: str       # what a request may say: "Anna", "a dog"
    named: bool


def invented_name(rng):
    """A made-up name (ending in -a for girls, -o for boys), so that unknown names are copied, not replaced."""
    body = "".join(rng.choice("b d f g k l m n p r s t v z j br tr kl st".split()) + rng.choice("a e i o u".split())
                   for _ in range(rng.choice((1, 1, 2)))) + rng.choice("l n r m s t d v".split())
    girl = rng.random() < 0.5
    return cap(body) + ("a" if girl else "o"), girl


def being(rng, animal=None, avoid=()):
    """A random person or animal, not one of `avoid`."""
    while True:
        who = make_being(rng, animal)
        if all(who.name != o.name and who.kind != o.kind or (who.name != o.name and who.named and o.named) for o in avoid):
            return who


def make_being(rng, animal=None):
    is_animal = rng.random() < 0.5 if animal is None else animal
    trait = rng.choice(TRAITS)
    girl = rng.random() < 0.5
    name = rng.choice(GIRLS if girl else BOYS)
    if rng.random() < 0.12:
        name, girl = invented_name(rng)
    pronouns = ("she", "her", "her") if girl else ("he", "him", "his")
    if not is_animal:
        kind = "girl" if girl else "boy"
        return Being(name, rng.choice((f"a {trait} {kind} named {name}", f"a {kind} named {name}", name)), *pronouns, kind, name, True)
    kind = rng.choice(ANIMALS)
    if animal is None and rng.random() < 0.35:
        return Being(name, f"a {trait} {kind} named {name}", *pronouns, kind, an(kind), True)
    return Being(f"the {kind}", rng.choice((f"a {trait} {kind}", an(kind))), "it", "it", "its", kind, an(kind), False)


@dataclass
class Story:
    """A story under construction: its state, its sentences and the questions it can answer."""
    rng: random.Random
    short: bool = False
    timed: bool = False                              # the opening told what day or hour it was
    text: list = field(default_factory=list)
    questions: list = field(default_factory=list)   # (kind, [wordings], answer)

    def __post_init__(self):
        r = self.rng
        self.hero = being(r)
        self.friend = being(r, animal=r.random() < 0.7, avoid=[self.hero])
        self.colour, self.toy = r.choice(COLOURS), r.choice(TOYS)
        (self.prep, self.place), (_, self.home) = r.sample(PLACES, 2)
        self.number, self.things = r.choice(NUMBERS), r.choice(THINGS)
        self.feeling = r.choice(FEELINGS)

    def say(self, *choices, p=1.0):
        """Adds one of the sentences, or with chance 1 - p (always in a short story) none when p < 1."""
        if p < 1 and (self.short or self.rng.random() > p):
            return
        self.text.append(cap(self.rng.choice(choices)))

    def ask(self, kind, wordings, answer):
        """Records a question; where the hero has a pronoun of its own, the pronoun may stand for the name."""
        self.questions.append((kind, [cap(w) for w in wordings], cap(answer)))

    # opening sentences shared by the plots
    def open(self):
        s, h, r = self, self.hero, self.rng
        roll = r.random()
        if roll < 0.42:
            intro = h.intro if h.intro != h.name else f"a {h.kind} named {h.name}"
            s.say(f"Once upon a time there was {intro}.", f"Once upon a time, {intro} lived near the {s.home}.",
                  f"There once was {intro}.", f"Long ago, {intro} lived near the {s.home}.",
                  f"Near the {s.home} there lived {intro}.")
        elif h.named and roll < 0.6:
            s.say(f"{h.name} was a {r.choice(TRAITS)} {h.kind}.", f"{h.name} was a {r.choice(TRAITS)} {h.kind} who lived near the {s.home}.",
                  f"{h.name} the {h.kind} lived near the {s.home}.")
        elif not h.named and roll < 0.75:
            t = r.choice(TRAITS)
            s.say(f"the {t} {h.kind} lived near the {s.home}.", f"{an(t)} {h.kind} lived near the {s.home}.",
                  f"the {h.kind} was {r.choice(TRAITS)}.")
        elif h.named and h.kind not in ("girl", "boy"):
            s.say(f"{an(h.kind)} named {h.name} lived near the {s.home}.", f"{h.name} was {an(h.kind)}.")
        else:
            s.timed = True
            s.say(f"it was a sunny day, and {h.name} wanted to play.", f"it was early in the morning when {h.name} woke up.",
                  f"one morning {h.name} woke up early.", f"one day {h.name} was at home and had nothing to do.")
        s.ask("who", ["Who is the story about?", "Who is this story about?", "Who was the story about?", "What is the story about?"],
              f"The story is about {h.name}.")
        if h.named and h.kind in re.findall(r"\w+", s.text[0]):
            s.ask("who", [f"Who is {h.name}?", f"Who was {h.name}?", f"What is {h.name}?", f"What kind of person or animal is {h.name}?"],
                  f"{h.name} is {an(h.kind)}.")

    def go(self):
        s, h = self, self.hero
        verb = s.rng.choice(("went", "walked"))
        s.say(f"{s.when()} {h.name} {verb} to the {s.place}.", f"{s.when()} {h.he} {verb} to the {s.place}.")
        s.asked_where()

    def when(self):
        """Words that start what happens next."""
        return self.rng.choice(("so", "then", "after breakfast", "after a while") if self.timed else
                               ("one day", "one morning", "on a sunny day", "one sunny morning", "one afternoon"))

    def asked_where(self):
        s, h = self, self.hero
        s.ask("where", s.both("Where did {} go?") + s.both("Where did {} go in the story?") + s.both("To which place did {} go?"),
              f"{h.name} went to the {s.place}.")

    def both(self, form):
        """The wording with the hero's name (twice, to be likelier) and with the pronoun."""
        h = self.hero
        return [form.format(h.name)] * 2 + ([form.format(h.he)] if h.he != self.friend.he else [])

    def own(self, verb="had"):
        s, h = self, self.hero
        s.say(f"{h.he} had a {s.colour} {s.toy}." if s.colour[0] not in "aeiou" else f"{h.he} had an {s.colour} {s.toy}.",
              f"{h.name} had {an(s.colour)} {s.toy}.", f"{h.name} loved {h.his} {s.colour} {s.toy}.",
              f"{h.his} best toy was {an(s.colour)} {s.toy}.")
        s.asked_colour()

    def asked_colour(self, noun=None):
        s, noun = self, noun or self.toy
        s.ask("colour", [f"What colour was the {noun}?"] * 2 + [f"What color was the {noun}?", f"Which colour was the {noun}?",
              f"What was the colour of the {noun}?", f"What colour did the {noun} have?", f"What color is the {noun}?", f"What colour is the {noun}?"],
              f"the {noun} was {s.colour}.")
        other = s.rng.choice([c for c in COLOURS if c != s.colour])
        s.ask("yes or no", [f"Was the {noun} {s.colour}?", f"Is the {noun} {s.colour}?"], f"the {noun} was {s.colour}.")
        s.ask("yes or no", [f"Was the {noun} {other}?", f"Is the {noun} {other}?"], f"the {noun} was {s.colour}.")

    def meet(self, *choices):
        s, h, f = self, self.hero, self.friend
        s.say(*(choices or (f"there {h.he} met {f.intro}.", f"{s.prep} the {s.place} {h.he} met {f.intro}.",
                            f"soon {h.he} saw {f.intro}.", f"then {f.intro} came along.")))
        s.asked_met()

    def asked_met(self):
        s, h, f = self, self.hero, self.friend
        if f.named:
            s.ask("who", s.both("Who did {} meet?") + s.both("Whom did {} meet?") + s.both("Who did {} see?"), f"{h.name} met {f.name}.")
        else:
            s.ask("which animal", s.both("Which animal did {} meet?") + s.both("What animal did {} meet?") + s.both("Who did {} meet?"),
                  f"{h.name} met {an(f.kind)}.")

    def asked_many(self, base, past, things=None):
        s, h, things = self, self.hero, things or self.things
        s.ask("how many", s.both(f"How many {things} did {{}} {base}?") + s.both(f"What number of {things} did {{}} {base}?"),
              f"{h.name} {past} {s.number} {things}.")

    def end(self, *choices):
        s, h = self, self.hero
        if choices:
            s.say(*choices)
        s.say(f"{h.name} felt very {s.feeling}.", f"in the evening {h.name} was {s.feeling}.", f"{h.name} went home and felt {s.feeling}.",
              f"that night {h.name} was very {s.feeling}.", f"at the end of the day {h.name} felt {s.feeling}.")
        s.ask("how", s.both("How did {} feel at the end?") + s.both("How did {} feel?") + [f"How was {h.name} at the end?", f"How was {h.name} in the end?"],
              f"{h.name} felt {s.feeling}.")
        s.say("They were good friends from that day on.", "It was a very good day.", "Everyone slept well that night.",
              "It was a day to remember.", "The sun went down, and the stars came out.", "And that is the end of the story.", p=0.4)
