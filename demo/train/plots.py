"""The plots of the stories, and scenes of a few facts.

A plot fills a `Story` with sentences and with the questions they answer.
"""
from types import SimpleNamespace

from stories import Story, invented_name
from words import (ANIMALS, BOYS, COLOURS, FOOD, GIRLS, HIDING, NUMBERS, PLACES, SOUNDS, TOYS, an, cap,
                   cap_sentence)


def plot_lost(s):
    h, f = s.hero, s.friend
    s.topic = ["a lost {toy}", "losing something"]
    s.open(); s.own(); s.go()
    s.say(f"{h.he} played there all morning.", "the wind was strong that day.", f"{h.he} ran and jumped in the sun.", p=0.5)
    s.say(f"but then {h.he} lost the {s.toy}.", f"suddenly the {s.toy} was gone.", f"after a while {h.name} could not find the {s.toy}.")
    s.ask("what", s.both("What did {} lose?") + s.both("What could {} not find?") + s.both("Which thing did {} lose?"), f"{h.name} lost the {s.colour} {s.toy}.")
    s.say(f"{h.he} looked everywhere, but {h.he} could not see it.", f"{h.name} was sad and began to look for it.", f"{h.he} looked for it for a long time.", p=0.7)
    s.meet()
    spot = s.rng.choice(HIDING)
    s.say(f"{f.name} helped {h.him} and found the {s.toy} {spot}.", f"together they looked again, and {f.name} found the {s.toy} {spot}.")
    s.ask("who", [f"Who found the {s.toy}?"] * 2 + [f"Who found the {s.colour} {s.toy}?"], f"{f.name} found the {s.toy}.")
    s.ask("who", [f"Who helped {h.name}?"], f"{f.name} helped {h.name}.")
    s.ask("where", [f"Where was the {s.toy}?"] * 2 + [f"Where did {f.name} find the {s.toy}?"], f"the {s.toy} was {spot}.")
    s.things = s.rng.choice(FOOD)
    if s.rng.random() < 0.7:
        s.say(f"to say thank you, {h.name} gave {f.name} {s.number} {s.things}.", f"{h.name} said thank you and gave {f.name} {s.number} {s.things}.")
        s.asked_many("give " + f.name, f"gave {f.name}")
    s.end()


def plot_find(s):
    h, f = s.hero, s.friend
    s.toy = s.rng.choice("box bag basket".split())
    s.topic = ["{a_toy}", "a surprise"]
    s.open(); s.go()
    spot = s.rng.choice(HIDING)
    s.say(f"{spot} {h.he} found {an(s.colour)} {s.toy}.", f"{h.he} found {an(s.colour)} {s.toy} {spot}.", f"{h.name} saw {an(s.colour)} {s.toy} {spot}.")
    s.ask("what", s.both("What did {} find?") + s.both(f"What did {{}} find {s.prep} the {s.place}?"), f"{h.name} found {an(s.colour)} {s.toy}.")
    s.ask("where", [f"Where was the {s.toy}?"] * 2 + [f"Where did {h.name} find the {s.toy}?"], f"the {s.toy} was {spot}.")
    s.asked_colour()
    s.say(f"{h.he} opened the {s.toy} very slowly.", f"what could be in the {s.toy}?", f"the {s.toy} was old and heavy.", p=0.5)
    s.say(f"in the {s.toy} there were {s.number} {s.things}.", f"there were {s.number} {s.things} in the {s.toy}.", f"{h.he} opened it and saw {s.number} {s.things}.")
    s.ask("how many", [f"How many {s.things} were in the {s.toy}?"] * 2 + [f"How many {s.things} were there?", f"How many {s.things} were inside the {s.toy}?"],
          f"there were {s.number} {s.things} in the {s.toy}.")
    s.ask("what", [f"What was in the {s.toy}?"] * 2 + [f"What was inside the {s.toy}?"], f"there were {s.number} {s.things} in the {s.toy}.")
    s.meet()
    s.say(f"{h.name} gave some {s.things} to {f.name}.", f"{h.name} and {f.name} shared the {s.things}.", f"they looked at the {s.things} together.")
    s.end()


def plot_help(s):
    h, f = s.hero, s.friend
    s.topic = ["helping a friend", "kindness"]
    s.open(); s.go(); s.meet()
    s.things = s.rng.choice(FOOD)
    if s.rng.random() < 0.5:
        s.say(f"{f.name} was very hungry.", f"{f.name} was sad and hungry.", f'"I am so hungry," said {f.name}.')
        s.ask("how", [f"How did {f.name} feel when they met?", f"What was wrong with {f.name}?", f"Why did {f.name} need help?"], f"{f.name} was hungry.")
        s.say(f"{h.name} had a bag with food and gave {f.name} {s.number} {s.things}.", f"so {h.name} gave {f.name} {s.number} {s.things}.")
        s.asked_many("give " + f.name, f"gave {f.name}")
        s.say(f"{f.name} ate the {s.things} and smiled.", f"{f.name} ate all the {s.things}.", p=0.7)
    else:
        s.toy = s.rng.choice("scarf coat blanket hat".split())
        s.say(f"{f.name} was very cold.", f"{f.name} was cold and wet.", f'"I am so cold," said {f.name}.')
        s.ask("how", [f"How did {f.name} feel when they met?", f"What was wrong with {f.name}?", f"Why did {f.name} need help?"], f"{f.name} was cold.")
        s.say(f"{h.name} gave {f.name} {an(s.colour)} {s.toy}.", f"so {h.name} gave {f.name} {an(s.colour)} {s.toy}.")
        s.ask("what", s.both(f"What did {{}} give {f.name}?") + s.both(f"What did {{}} give to {f.name}?"), f"{h.name} gave {f.name} {an(s.colour)} {s.toy}.")
        s.asked_colour()
        s.say(f"the {s.toy} was warm and soft.", f"soon {f.name} was warm again.", p=0.7)
    s.say(f'"thank you, you are very kind," said {f.name}.', f"{f.name} said thank you.", f"now {f.name} and {h.name} were friends.")
    s.end()


def plot_birthday(s):
    h, f = s.hero, s.friend
    s.topic = ["a birthday", "a birthday party"]
    s.open()
    s.say(f"it was {h.name}'s birthday.", f"it was {h.name}'s birthday, and the party was {s.prep} the {s.place}.")
    if "party" in s.text[-1]:
        s.ask("where", ["Where was the party?"] * 2 + ["Where was the birthday party?"], f"the party was {s.prep} the {s.place}.")
    s.say(f"{h.his} friend was {f.intro}.") if not f.named else s.say(f"{h.his} best friend was {f.name}.")
    s.ask("who", [f"Who was {h.name}'s friend?", f"Who came to {h.name}?"], f"{h.name}'s friend was {f.name}.")
    s.say(f"{f.name} came with a present.", f"{f.name} came to the party in the afternoon.", p=0.6)
    s.say(f"{f.name} gave {h.him} {an(s.colour)} {s.toy}.", f"the present was {an(s.colour)} {s.toy}.")
    s.ask("what", ["What was the present?", f"What did {f.name} give {h.name}?", f"What did {h.name} get?"], f"{f.name} gave {h.name} {an(s.colour)} {s.toy}.")
    s.asked_colour()
    s.things = s.rng.choice("cakes cookies apples pears".split())
    s.say(f"then they ate {s.number} {s.things}.", f"they sang a song and ate {s.number} {s.things}.")
    s.ask("how many", [f"How many {s.things} did they eat?"] * 2 + [f"How many {s.things} did {h.name} and {f.name} eat?"], f"they ate {s.number} {s.things}.")
    s.say(f"after that they played with the {s.toy}.", f"{h.name} played with the {s.toy} until it was dark.", f"{h.name} loved the {s.colour} {s.toy}.")
    s.end()


def plot_rain(s):
    h, f = s.hero, s.friend
    s.toy = s.rng.choice("umbrella coat hat".split())
    s.topic = ["the rain", "a rainy day"]
    s.open(); s.own(); s.go()
    s.say("suddenly it began to rain.", "soon dark clouds came and it began to rain.", "then the rain came down.")
    s.ask("what", ["What was the weather like?", "How was the weather?", "What happened to the weather?"], "it began to rain.")
    s.meet(f"under a tree {h.he} saw {f.intro}.", f"there {h.he} met {f.intro}.")
    s.say(f"{f.name} was wet and cold.", f"{f.name} was very wet.", f"{f.name} did not like the rain.")
    s.say(f"{h.name} shared the {s.colour} {s.toy} with {f.name}.", f"{h.name} held the {s.toy} over {f.name}.")
    s.say("they waited together until the rain stopped.", "together they watched the rain.", "they told each other funny stories.")
    s.say(f"then the sun came out, and they saw {s.number} birds in the sky.", f"after the rain they counted {s.number} snails on the path.", p=0.5)
    for noun in ("birds", "snails"):
        if noun in s.text[-1]:
            s.ask("how many", [f"How many {noun} did they see?", f"How many {noun} were there?"], f"they saw {s.number} {noun}.")
    s.end()


def plot_build(s):
    h, f = s.hero, s.friend
    s.toy = s.rng.choice("boat house kite bridge cart".split())
    s.things = s.rng.choice("stones nails boards sticks ropes".split())
    s.topic = ["building {a_toy}", "making something new"]
    s.open()
    s.say(f"{h.name} wanted to build a {s.toy}.", f"{h.name} had a plan to build a {s.toy}.", f"{s.when()} {h.name} wanted to make a {s.toy}.")
    s.ask("what", s.both("What did {} want to build?") + s.both("What did {} build?") + s.both("What did {} make?"), f"{h.name} built a {s.toy}.")
    s.say(f"so {h.he} went to the {s.place} and took {s.number} {s.things}.", f"{h.he} went to the {s.place} and found {s.number} {s.things}.")
    s.asked_where(); s.ask("how many", s.both(f"How many {s.things} did {{}} have?") + s.both(f"How many {s.things} did {{}} find?") + s.both(f"How many {s.things} did {{}} take?"), f"{h.name} had {s.number} {s.things}.")
    s.meet(f"on the way back {h.he} met {f.intro}.", f"there {h.he} met {f.intro}.")
    s.say(f"{f.name} wanted to help.", f'"can I help you?" asked {f.name}.', f"{f.name} liked the plan.")
    s.say("they worked all day.", "it was hard work, but it was fun.", "they worked until the evening.", p=0.6)
    s.say(f"at last the {s.toy} was ready, and they painted it {s.colour}.", f"then {f.name} painted the {s.toy} {s.colour}.", f"in the end they had a fine {s.colour} {s.toy}.")
    s.asked_colour()
    s.ask("who", [f"Who helped {h.name}?"] * 2 + [f"Who helped {h.name} with the {s.toy}?"], f"{f.name} helped {h.name}.")
    s.end()


def plot_race(s):
    h, f = s.hero, s.friend
    s.topic = ["a race", "a contest"]
    s.open(); s.meet(f"{s.when()} {h.he} met {f.intro}.", f"on the road {h.he} met {f.intro}.")
    s.say(f'"let us race to the {s.place}," said {f.name}.', f"they wanted to race to the {s.place}.", f"{h.name} and {f.name} had a race to the {s.place}.")
    s.ask("where", ["Where did they race to?"] * 2 + ["Where did they run?", "Where did the race end?"], f"they raced to the {s.place}.")
    s.say(f"the winner would get {an(s.colour)} {s.toy}.", f"the prize was {an(s.colour)} {s.toy}.")
    s.ask("what", ["What was the prize?"] * 2 + ["What did the winner get?"], f"the prize was {an(s.colour)} {s.toy}.")
    s.asked_colour()
    s.say("they ran as fast as the wind.", "at first they ran side by side.", "it was a long way, but they did not stop.", p=0.7)
    s.say(f"{s.number} {s.rng.choice(ANIMALS[:8])}s watched the race.".replace("mouses", "mice").replace("foxs", "foxes"), p=0.4)
    won, other = (h, f) if s.rng.random() < 0.6 else (f, h)
    s.say(f"in the end {won.name} won the race.", f"{won.name} was faster and won the race.", f"{other.name} was fast, but {won.name} won.")
    s.ask("who", ["Who won the race?"] * 2 + ["Who won?", "Who was faster?", "Who was the winner?"], f"{won.name} won the race.")
    s.say(f"{won.name} took the {s.toy}, and {other.name} was not angry.", f"{won.name} got the {s.toy} and shared it with {other.name}.", p=0.8)
    s.end()


def plot_market(s):
    h, f = s.hero, s.friend
    s.prep, s.place = "at", "market"
    s.things = s.rng.choice(FOOD + ["eggs", "flowers"])
    s.topic = ["the market", "shopping"]
    s.open(); s.go()
    s.say("many people were there.", "the market was full of good things.", "there was music in the air.", p=0.6)
    s.say(f"{h.he} bought {s.number} {s.things} and {an(s.colour)} {s.toy}.", f"first {h.he} bought {s.number} {s.things}, and then {an(s.colour)} {s.toy}.")
    s.asked_many("buy", "bought"); s.asked_colour()
    s.ask("what", s.both("What did {} buy?") + s.both(f"What did {{}} buy {s.prep} the {s.place}?"), f"{h.name} bought {s.number} {s.things} and {an(s.colour)} {s.toy}.")
    s.meet(f"on the way home {h.he} met {f.intro}.", f"next to the gate {h.he} met {f.intro}.")
    s.say(f"{f.name} looked at the {s.toy} and smiled.", f'"what a nice {s.toy}!" said {f.name}.', f"{f.name} liked the {s.toy} very much.")
    s.say(f"so {h.name} gave the {s.toy} to {f.name}.", f"{h.name} gave {f.name} the {s.colour} {s.toy}.")
    s.ask("who", [f"Who got the {s.toy}?"] * 2 + [f"Who did {h.name} give the {s.toy} to?"], f"{f.name} got the {s.toy}.")
    s.say(f"then they ate the {s.things} together." if s.things in FOOD else f"then {h.he} took the {s.things} home.", p=0.6)
    s.end()


def plot_night(s):
    h, f = s.hero, s.friend
    s.toy = s.rng.choice("lamp hat blanket bell".split())
    s.topic = ["the night", "a strange sound"]
    s.open()
    sound = s.rng.choice(SOUNDS)
    s.say(f"one night {h.name} heard {sound}.", f"late at night {h.he} heard {sound}." if h.name in s.text[-1] else f"late at night {h.name} heard {sound}.")
    s.ask("what", s.both("What did {} hear?") + s.both("What did {} hear at night?"), f"{h.name} heard {sound}.")
    s.say(f"{h.he} was afraid and could not sleep.", f"{h.name} was a little afraid.", f"{h.his} heart went fast.", p=0.7)
    s.say(f"{h.he} took {h.his} {s.colour} {s.toy} and went to the {s.place}.", f"but {h.he} took {an(s.colour)} {s.toy} and walked to the {s.place}.")
    s.asked_colour(); s.asked_where()
    s.ask("what", s.both("What did {} take?") + s.both("What did {} take along?"), f"{h.name} took {an(s.colour)} {s.toy}.")
    s.say("it was very dark.", "the moon was big and round.", f"{h.he} counted {s.number} stars in the sky.", p=0.6)
    if "counted" in s.text[-1]:
        s.asked_many("count", "counted", "stars")
    s.meet(f"there {h.he} saw {f.intro}.", f"it was only {f.intro}!")
    s.say(f'"do not be afraid, I only wanted to play," said {f.name}.', f"{f.name} was alone and wanted a friend.", f"{f.name} only wanted to say hello.")
    s.say(f"{h.name} laughed, and they sat down together.", f"then {h.name} was not afraid any more.", f"{h.name} and {f.name} looked at the moon together.")
    s.end()


def plot_plant(s):
    h, f = s.hero, s.friend
    s.toy = s.rng.choice("flower tree rose tulip".split())
    s.topic = ["a seed", "{a_toy}"]
    s.open()
    s.say(f"{s.when()} {h.name} planted a seed {s.prep} the {s.place}.", f"in spring {h.name} put a small seed in the ground {s.prep} the {s.place}.")
    s.ask("where", s.both("Where did {} plant the seed?") + ["Where was the seed?"], f"{h.name} planted the seed {s.prep} the {s.place}.")
    s.say(f"every day {h.he} gave it water.", f"{h.he} gave it water and sang to it.", f"{h.name} waited and waited.")
    s.say("at first nothing happened.", "the sun was warm, and the rain was soft.", p=0.6)
    s.say(f"after {s.number} days {an(s.colour)} {s.toy} came out of the ground.", f"after {s.number} days there was {an(s.colour)} {s.toy}.")
    s.ask("how many", [f"After how many days did the {s.toy} come?", f"How many days did {h.name} wait?", "How many days did it take?"], f"it took {s.number} days.")
    s.ask("what", ["What came out of the ground?", "What grew?", f"What did {h.name} grow?"], f"{an(s.colour)} {s.toy} came out of the ground.")
    s.asked_colour()
    s.meet(f"then {f.intro} came to see the {s.toy}.", f"soon {f.intro} came by.")
    s.say(f'"how nice it is!" said {f.name}.', f"{f.name} liked the {s.colour} {s.toy}.", f"{f.name} had never seen such a fine {s.toy}.")
    s.say(f"now they both give water to the {s.toy}.", f"{h.name} gave {f.name} a seed, too.", p=0.6)
    s.end()


def plot_hide(s):
    h, f = s.hero, s.friend
    s.topic = ["a game", "hide and seek"]
    s.open(); s.go(); s.meet()
    s.say("they played hide and seek.", f'"let us play hide and seek," said {f.name}.')
    s.ask("what", ["What did they play?", "Which game did they play?", f"What did {h.name} and {f.name} play?"], "they played hide and seek.")
    spot = s.rng.choice(HIDING)
    s.say(f"{h.name} closed {h.his} eyes and counted to {s.number}.", f"{h.name} counted to {s.number}.")
    s.ask("how many", s.both("To which number did {} count?") + s.both("How far did {} count?"), f"{h.name} counted to {s.number}.")
    s.say(f"{f.name} hid {spot}.", f"{f.name} ran and hid {spot}.")
    s.ask("where", [f"Where did {f.name} hide?"] * 2 + [f"Where was {f.name}?"], f"{f.name} hid {spot}.")
    s.toy = s.rng.choice("hat scarf ribbon coat".split())
    s.say(f"but {h.name} saw {an(s.colour)} {s.toy} and knew who it was.", f"{f.name} had {an(s.colour)} {s.toy}, and {h.name} saw it at once.")
    s.asked_colour()
    s.say(f'"I found you!" said {h.name}.', f"{h.name} found {f.name} and laughed.", f"so {h.name} won the game.")
    s.say("they played again and again.", "after the game they had some milk.", f"then it was time for {f.name} to count.", p=0.5)
    s.end()


def plot_learn(s):
    h, f = s.hero, s.friend
    skill = s.rng.choice("swim sing dance read paint climb whistle cook".split())
    s.topic = [f"learning to {skill}", "learning something new"]
    s.open()
    s.say(f"{h.name} wanted to learn to {skill}.", f"more than anything, {h.name} wanted to {skill}.", f"{h.name} could not {skill}, and that made {h.him} sad.")
    s.ask("what", s.both("What did {} want to learn?") + s.both("What did {} learn?"), f"{h.name} wanted to {skill}.")
    s.go(); s.meet()
    s.say(f'"I can teach you," said {f.name}.', f"{f.name} could {skill} very well.", f"{f.name} was a good teacher.")
    s.ask("who", [f"Who taught {h.name}?", "Who was the teacher?"], f"{f.name} taught {h.name}.")
    s.ask("who", [f"Who helped {h.name}?"], f"{f.name} helped {h.name}.")
    s.say(f"{h.name} tried {s.number} times.", f"it was not easy, and {h.name} had to try {s.number} times.")
    s.ask("how many", s.both("How many times did {} try?") + s.both("How often did {} try?"), f"{h.name} tried {s.number} times.")
    s.say(f"but in the end {h.he} could {skill}.", f"then, at last, {h.name} could {skill}.")
    s.say(f"{f.name} gave {h.him} {an(s.colour)} {s.toy} as a prize.", f"as a present {h.he} got {an(s.colour)} {s.toy}.")
    s.asked_colour()
    s.end()


def plot_trip(s):
    h, f = s.hero, s.friend
    s.toy = s.rng.choice("boat train car bike balloon cart".split())
    seen = s.rng.choice("ducks horses cows birds sheep goats rabbits".split())
    s.topic = ["a trip", "a trip with {a_toy}", "an adventure"]
    s.open(); s.own()
    s.say(f"{s.when()} {h.he} took the {s.toy} and went to the {s.place}.", f"in summer {h.name} went to the {s.place} with the {s.colour} {s.toy}.")
    s.asked_where()
    s.ask("how", s.both(f"How did {{}} go to the {s.place}?") + s.both("How did {} travel?"), f"{h.name} went with the {s.colour} {s.toy}.")
    s.say("the way was long.", "the sky was blue, and the air was warm.", f"{h.he} sang a song on the way.", p=0.6)
    s.say(f"on the way {h.he} saw {s.number} {seen}.", f"{h.name} saw {s.number} {seen} on the way.")
    s.asked_many("see", "saw", seen)
    s.meet()
    s.say(f"{f.name} wanted to come along.", f'"take me with you!" said {f.name}.', f"{f.name} had never seen such a {s.toy}.")
    s.say("so they went on together in the sun.", f"{h.name} and {f.name} had a lot of fun with the {s.toy}.", f"they went all the way around the {s.place}.")
    s.end()


PLOTS = [plot_lost, plot_find, plot_help, plot_birthday, plot_rain, plot_build, plot_race, plot_market, plot_night, plot_plant,
         plot_hide, plot_learn, plot_trip]


def make_story(rng, short=None):
    """A finished story."""
    story = Story(rng, short=rng.random() < 0.2 if short is None else short)
    rng.choice(PLOTS)(story)
    story.string = " ".join(cap_sentence(t) for t in story.text)
    return story


def make_scene(rng):
    """A few facts as a user would type them, with the questions they answer: like a story, it has `string` and `questions`."""
    people = rng.sample(GIRLS + BOYS, 3)
    if rng.random() < 0.15:
        people[rng.randrange(3)] = invented_name(rng)[0]
    toys, colours, places, animals = rng.sample(TOYS, 3), rng.sample(COLOURS, 3), rng.sample(PLACES, 3), rng.sample(ANIMALS, 3)
    sentences, questions = [], []
    ask = lambda kind, forms, answer: questions.append((kind, forms, cap(answer)))
    for who, toy, colour, (prep, place), animal in zip(people[:rng.choice((1, 2, 2, 3))], toys, colours, places, animals):
        for what in rng.sample(("toy", "place", "pet", "food"), rng.choice((1, 1, 2))):
            if what == "toy":
                sentences.append(rng.choice((f"{who} has {an(colour)} {toy}.", f"{who}'s {toy} is {colour}.", f"The {toy} of {who} is {colour}.")))
                ask("colour", [f"What colour is {who}'s {toy}?", f"What color is {who}'s {toy}?", f"What colour is the {toy} of {who}?", f"Which colour is {who}'s {toy}?"],
                    f"{who}'s {toy} is {colour}.")
                ask("colour", [f"What colour is the {toy}?", f"What color is the {toy}?", f"Which colour is the {toy}?"], f"the {toy} is {colour}.")
                ask("who", [f"Who has {an(colour)} {toy}?", f"Who has the {toy}?", f"Who has the {colour} {toy}?"], f"{who} has the {toy}.")
                if " has " in sentences[-1]:
                    ask("what", [f"What does {who} have?", f"What has {who}?"], f"{who} has {an(colour)} {toy}.")
            elif what == "place":
                sentences.append(rng.choice((f"{who} is {prep} the {place}.", f"{who} is now {prep} the {place}.")))
                ask("where", [f"Where is {who}?"] * 2 + [f"Where is {who} now?"], f"{who} is {prep} the {place}.")
                ask("who", [f"Who is {prep} the {place}?"], f"{who} is {prep} the {place}.")
            elif what == "pet":
                sentences.append(f"{who} likes the {animal}.")
                ask("which animal", [f"Which animal does {who} like?", f"What animal does {who} like?", f"What does {who} like?"], f"{who} likes the {animal}.")
                ask("who", [f"Who likes the {animal}?"], f"{who} likes the {animal}.")
            else:
                n, food = rng.choice(NUMBERS), rng.choice(FOOD)
                verb = "ate" if rng.random() < 0.5 else "bought"
                sentences.append(f"{who} {verb} {n} {food}.")
                ask("how many", [f"How many {food} did {who} {dict(ate='eat', bought='buy')[verb]}?"], f"{who} {verb} {n} {food}.")
    rng.shuffle(sentences)
    # a question is fair only when its wording has one answer here
    answers = {}
    for _, forms, answer in questions:
        for form in forms:
            answers.setdefault(form, set()).add(answer)
    questions = [(k, [f for f in forms if len(answers[f]) == 1], a) for k, forms, a in questions]
    questions = [(k, f, a) for k, f, a in questions if f]
    return SimpleNamespace(string=" ".join(sentences), questions=questions)
