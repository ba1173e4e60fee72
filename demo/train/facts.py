"""What the model knows without a story: facts, small talk and what it does not know."""
from words import an, cap


def _facts():
    """All facts as (answer, [questions]) pairs."""
    out = []
    add = lambda answer, *questions: out.append((answer, list(questions)))
    def count(n, what, where, verb="are there"):
        add(f"There are {n} {what} in {where}.", f"How many {what} are in {where}?", f"How many {what} are there in {where}?",
            f"How many {what} does {where} have?")
    count("seven", "days", "a week"); count("twelve", "months", "a year"); count("four", "seasons", "a year")
    count("twenty-four", "hours", "a day"); count("sixty", "minutes", "an hour"); count("sixty", "seconds", "a minute")
    for who, n in [("spider", "eight"), ("dog", "four"), ("cat", "four"), ("bird", "two"), ("horse", "four"), ("cow", "four"),
                   ("bee", "six"), ("ant", "six"), ("duck", "two"), ("hen", "two"), ("sheep", "four"), ("frog", "four")]:
        add(f"{an(who).capitalize()} has {n} legs.", f"How many legs does {an(who)} have?", f"How many legs has {an(who)}?",
            f"How many legs does the {who} have?")
    add("A snake has no legs.", "How many legs does a snake have?", "How many legs has a snake?", "Does a snake have legs?")
    for who, n in [("car", "four"), ("bicycle", "two"), ("bike", "two"), ("tricycle", "three")]:
        add(f"A {who} has {n} wheels.", f"How many wheels does a {who} have?", f"How many wheels has a {who}?",
            f"How many wheels are on a {who}?")
    for what, c in [("the sky", "blue"), ("the sun", "yellow"), ("grass", "green"), ("snow", "white"), ("coal", "black"),
                    ("milk", "white"), ("the sea", "blue"), ("blood", "red"), ("gold", "yellow"), ("chocolate", "brown"),
                    ("a banana", "yellow"), ("a lemon", "yellow"), ("a tomato", "red"), ("a strawberry", "red"),
                    ("a carrot", "orange"), ("a frog", "green"), ("a leaf", "green"), ("a cherry", "red"), ("an elephant", "grey"),
                    ("a cloud", "white"), ("the night", "black")]:
        add(f"{cap(what)} is {c}.", f"What colour is {what}?", f"What color is {what}?", f"Which colour is {what}?",
            f"What is the colour of {what}?", f"What is the color of {what}?")
    for who, sound in [("dog", "woof"), ("cat", "meow"), ("cow", "moo"), ("duck", "quack"), ("sheep", "baa"), ("pig", "oink"),
                       ("owl", "hoo"), ("bee", "buzz"), ("horse", "neigh"), ("hen", "cluck"), ("frog", "croak"),
                       ("mouse", "squeak"), ("lion", "roar"), ("bird", "tweet"), ("snake", "hiss"), ("wolf", "howl")]:
        add(f"{an(who).capitalize()} says {sound}.", f"What does {an(who)} say?", f"What does the {who} say?",
            f"What sound does {an(who)} make?", f"Which sound does {an(who)} make?", f"What noise does {an(who)} make?")
    for who, baby in [("dog", "puppy"), ("cat", "kitten"), ("cow", "calf"), ("sheep", "lamb"), ("hen", "chick"), ("horse", "foal"),
                      ("duck", "duckling"), ("pig", "piglet"), ("bear", "cub"), ("goat", "kid")]:
        add(f"A young {who} is called a {baby}.", f"What is a young {who} called?", f"What is a baby {who} called?",
            f"What do you call a young {who}?", f"What do you call a baby {who}?")
    for who, home in [("bird", "in a nest"), ("bee", "in a hive"), ("fish", "in the water"), ("fox", "in a den"),
                      ("rabbit", "in a burrow"), ("spider", "in a web"), ("cow", "on a farm"), ("camel", "in the desert"),
                      ("monkey", "in the trees")]:
        add(f"{an(who).capitalize()} lives {home}.", f"Where does {an(who)} live?", f"Where does the {who} live?",
            f"What is the home of {an(who)}?")
    for who, food in [("cow", "grass"), ("rabbit", "carrots"), ("monkey", "bananas"), ("cat", "fish"), ("squirrel", "nuts"),
                      ("dog", "meat"), ("mouse", "cheese"), ("panda", "bamboo")]:
        add(f"{an(who).capitalize()} likes to eat {food}.", f"What does {an(who)} eat?", f"What does {an(who)} like to eat?",
            f"What does the {who} eat?")
    days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
    months = "January February March April May June July August September October November December".split()
    for kind, names in (("day", days), ("month", months)):
        for i, name in enumerate(names):
            nxt = names[(i + 1) % len(names)]
            add(f"{nxt} comes after {name}.", f"What {kind} comes after {name}?", f"Which {kind} comes after {name}?",
                f"What comes after {name}?", f"Which {kind} follows {name}?")
            add(f"{name} comes before {nxt}.", f"What {kind} comes before {nxt}?", f"Which {kind} comes before {nxt}?",
                f"What comes before {nxt}?")
    for i in range(10):
        add(f"{i + 1} comes after {i}.", f"What number comes after {i}?", f"Which number comes after {i}?",
            f"What comes after {i}?")
    for land, city in [("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Germany", "Berlin"), ("England", "London"),
                       ("Japan", "Tokyo"), ("Portugal", "Lisbon"), ("Greece", "Athens"), ("Austria", "Vienna"), ("China", "Beijing"),
                       ("Norway", "Oslo"), ("Egypt", "Cairo")]:
        add(f"The capital of {land} is {city}.", f"What is the capital of {land}?", f"Which city is the capital of {land}?",
            f"What's the capital of {land}?", f"What is the capital city of {land}?")
    add("The first month of the year is January.", "What is the first month of the year?", "Which month is the first of the year?",
        "Which month comes first in the year?")
    add("The last month of the year is December.", "What is the last month of the year?", "Which month is the last of the year?",
        "Which month comes last in the year?")
    add("The first day of the week is Monday.", "What is the first day of the week?", "Which day is the first of the week?",
        "Which day comes first in the week?")
    add("Ice is frozen water.", "What is ice?", "What is ice made of?", "What is frozen water called?")
    add("Bees make honey.", "Who makes honey?", "Which animal makes honey?", "What do bees make?")
    add("Cows give us milk.", "Where does milk come from?", "Which animal gives us milk?", "Who gives us milk?")
    add("Hens lay eggs.", "Where do eggs come from?", "Which animal lays eggs?", "What do hens lay?")
    add("The sun shines in the day.", "What shines in the day?", "When does the sun shine?", "What gives us light in the day?")
    add("The moon shines at night.", "What shines at night?", "When does the moon shine?", "What gives us light at night?")
    add("The Earth is round.", "What shape is the Earth?", "Is the Earth round?", "Is the Earth flat?")
    add("A triangle has three sides.", "How many sides does a triangle have?", "How many sides has a triangle?",
        "How many sides are in a triangle?")
    add("A square has four sides.", "How many sides does a square have?", "How many sides has a square?",
        "How many sides are in a square?")
    add("A hand has five fingers.", "How many fingers does a hand have?", "How many fingers are on a hand?",
        "How many fingers are on one hand?")
    add("Deep learning is a way to teach a computer with many examples and a neural network.", "What is deep learning?",
        "What is Deep Learning?", "Can you explain deep learning?", "Explain deep learning.", "What does deep learning mean?")
    add("A language model is a program that reads text and writes the next words.", "What is a language model?",
        "What does a language model do?", "Explain what a language model is.")
    add("Rust is a programming language that is fast and safe.", "What is Rust?", "What is the Rust language?", "Explain what Rust is.")
    return out


FACTS = _facts()
UNKNOWN = [q for q in """What is the weather today?|Will it rain tomorrow?|What time is it?|What day is it today?
Who is the president?|How tall is the highest mountain?|Who wrote this book?|What is the meaning of life?|How far away is the moon?
How do I fix my computer?|What is the price of gold?|Who won the game last night?|Can you translate this text?|What is my name?
How old am I?|Where do I live?|What is quantum physics?|How do I cook rice?|What is the speed of light?|Who was the first king?
What is the population of the world?|How does an engine work?|Which film should I watch?|What is the square root of two?
Who invented the telephone?|How do planes fly?|What is the best phone?|Can you write a program for me?|How many stars are there?
What is the news today?|Can you book a flight?|What is philosophy?|Who painted this picture?|What did I eat yesterday?
How do I learn the piano?|What is the biggest city in the world?|Where can I buy a car?|Why is the sky blue?|Who are my friends?
How deep is the ocean?|What is chemistry?|Who sings this song?|What is my phone number?|Can you send an email?""".replace("\n", "|").split("|")]
DONT_KNOW = "I am sorry, I do not know that."
I_AM = "I am the Hilo demo model, a very small language model."
I_CAN = "I can tell short stories, answer questions about them, add small numbers and name opposites."
SMALL_TALK = [(I_AM, ["Who are you?", "What are you?", "What is your name?", "What's your name?", "Tell me who you are.",
                      "Introduce yourself.", "Are you a robot?", "Are you a person?", "Which model are you?"]),
              (I_CAN, ["What can you do?", "What do you know?", "How can you help me?", "Can you help me?", "Help!",
                       "What are you good at?", "What can I ask you?"]),
              ("Hello! How can I help you?", ["Hello!", "Hi!", "Hey!", "Good morning!", "Good evening!", "Hello there!", "Hi there!"]),
              ("I am well, thank you. How can I help you?", ["How are you?", "How are you today?", "How do you do?",
                                                             "Hello, how are you?", "Hi, how are you?"]),
              ("You are welcome!", ["Thank you!", "Thanks!", "Thanks a lot!", "Thank you very much!", "That was nice, thank you."]),
              ("Goodbye!", ["Bye!", "Goodbye!", "See you!", "See you later!", "Good night!"])]
SYSTEM = ["You are a helpful assistant.", "You are a friendly helper.", "Answer briefly.", "You are Hilo.", "Be kind and short.",
          "You are a storyteller for children.", "Answer all questions in simple words.", "You are a helpful, honest assistant."]
