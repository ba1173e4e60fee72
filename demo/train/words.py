"""Word lists of the corpus and two helpers for grammar."""
GIRLS = ("Anna Lily Emma Mia Sara Lucy Ella Nina Rosa Clara Julia Maria Eva Zoe Ruth Kate Lena Alice Jane Amy "
         "Sophie Laura Helen Ida").split()
BOYS = ("Tom Ben Max Leo Sam Jack Oscar Paul Peter Hugo Felix Noah Adam John Tim Luke Omar David Finn Karl "
        "Daniel Martin Henry Olivier").split()
ANIMALS = ("cat dog bird mouse fox rabbit frog duck horse bear cow sheep pig hen owl bee lion elephant monkey "
           "turtle squirrel hedgehog goat wolf tiger penguin kitten puppy pony donkey deer butterfly snail "
           "crab fish dragon").split()
COLOURS = "red blue green yellow white black brown orange pink purple grey golden".split()
TOYS = ("ball kite hat box book cup bag scarf bell balloon umbrella basket coat car train lamp drum boat "
        "ribbon blanket bike key coin ring flute").split()
THINGS = ("apples eggs stones shells flowers carrots nuts cakes berries pears leaves feathers cookies plums "
          "mushrooms buttons").split()
FOOD = "apples carrots nuts cakes berries pears cookies plums".split()
NUMBERS = "two three four five six seven eight nine ten".split()
PLACES = [("in", p) for p in "forest park garden village field meadow valley town jungle barn library".split()] + \
         [("by", p) for p in "river lake sea pond bridge".split()] + \
         [("on", p) for p in "beach hill farm island".split()] + \
         [("at", p) for p in "market school zoo castle".split()]
TRAITS = "little small brave kind clever funny shy curious young friendly gentle quiet".split()
FEELINGS = "happy proud glad thankful cheerful calm".split()
HIDING = ["under a big tree", "behind a rock", "in the tall grass", "under a bush", "next to a fence", "behind a door"]
SOUNDS = "a strange sound|a soft noise|a loud noise|a quiet knock".split("|")
NAMES = set(GIRLS) | set(BOYS)

# word/opposite pairs; a word that has two opposites keeps the one of its first pair
OPPOSITE = {}
for _pair in ("hot/cold big/small up/down left/right day/night black/white fast/slow happy/sad open/closed old/new good/bad "
              "long/short full/empty wet/dry hard/soft light/dark early/late strong/weak loud/quiet clean/dirty rich/poor near/far "
              "thick/thin in/out yes/no high/low first/last true/false win/lose push/pull start/stop come/go love/hate "
              "always/never before/after above/below inside/outside sweet/sour awake/asleep alive/dead buy/sell give/take "
              "laugh/cry question/answer summer/winter friend/enemy smooth/rough wide/narrow right/wrong easy/hard deep/shallow "
              "young/old tall/short heavy/light little/large on/off boy/girl man/woman king/queen brother/sister").split():
    _one, _other = _pair.split("/")
    OPPOSITE.setdefault(_one, _other)
    OPPOSITE.setdefault(_other, _one)
OPPOSITE.update(cool="warm", warm="cool", difficult="easy")


def cap(text):
    """First letter in upper case, the rest as it is."""
    return text[:1].upper() + text[1:]


def an(noun):
    """The noun with its indefinite article."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def cap_sentence(text):
    """The sentence with a capital, also right after an opening quotation mark."""
    return '"' + cap(text[1:]) if text.startswith('"') else cap(text)
