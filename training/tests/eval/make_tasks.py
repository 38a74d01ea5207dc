"""Writes the tasks of check_eval.py, from small grammars: choices.jsonl (100 items in HellaSwag's form), arc.jsonl (20 in ARC's),
translation.jsonl (40 items) and topics.jsonl (300 labeled texts).

Run from this folder: python make_tasks.py
"""

import json
import random

PEOPLE = ["A woman", "A man", "The girl", "An old sailor", "The cook", "A young teacher", "Her brother", "The gardener"]
SCENES = [
    ("opens the oven and takes out a tray of", ["bread", "biscuits", "pies"], [
        "lets it cool on a rack before cutting it",
        "puts the tray on the table and serves everyone a piece",
    ]),
    ("walks down to the river with a fishing rod and", ["a bucket", "a small net", "his dog"], [
        "casts the line and waits for a bite",
        "sits on the bank and watches the float",
    ]),
    ("is kneeling in the garden, planting rows of", ["carrots", "tulips", "beans"], [
        "waters the soil and stands up to stretch",
        "covers the seeds with earth and moves on to the next row",
    ]),
    ("picks up a violin and begins to tune", ["it", "the strings", "the instrument"], [
        "raises the bow and plays a slow melody",
        "turns the pegs until every string sounds right",
    ]),
    ("stands at the top of a snowy hill on", ["skis", "a sled", "a snowboard"], [
        "pushes off and races down the slope",
        "slides down between the trees and stops at the bottom",
    ]),
    ("dips a brush into a can of", ["white paint", "varnish", "blue paint"], [
        "spreads it evenly over the wooden fence",
        "covers the door with long, careful strokes",
    ]),
    ("sits down at a desk and turns on", ["the computer", "an old typewriter", "the lamp"], [
        "starts to write the first lines of a letter",
        "reads through the notes of the day before",
    ]),
    ("leads a brown horse out of", ["the stable", "the field", "a trailer"], [
        "brushes its coat and puts the saddle on",
        "climbs into the saddle and rides away",
    ]),
]
LINKS = ["Then, slowly,", "After a moment,", "A little later,", "Next,"]
TOPICS = {
    "sports": ["The team won the {} in the last minute", "Fans cheered as the striker scored in the {}", "The coach praised "
               "her players after the {}", "He ran the fastest lap of the {}"],
    "cooking": ["Stir the {} over low heat until it thickens", "Add salt and pepper to the {}", "Bake the {} for forty minutes",
                "Serve the {} with fresh herbs"],
    "weather": ["Heavy rain is expected over the {} tonight", "A cold wind blew across the {}", "Fog covered the {} in the morning",
                "The sun finally rose above the {}"],
}
FILLERS = {
    "sports": ["final", "match", "tournament", "race", "season", "game", "championship", "league"],
    "cooking": ["sauce", "soup", "dough", "vegetables", "rice", "stew", "cake", "potatoes"],
    "weather": ["coast", "valley", "mountains", "city", "islands", "harbor", "plains", "lake"],
}
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def write(name, records):
    with open(name, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def choices(rng):
    for _ in range(100):
        scene = rng.randrange(len(SCENES))
        start, objects, rights = SCENES[scene]
        others = rng.sample([at for at in range(len(SCENES)) if at != scene], 3)
        endings = [rng.choice(rights)] + [rng.choice(SCENES[at][2]) for at in others]
        # Endings of different lengths, and characters of several bytes.
        endings = [ending + rng.choice([".", ".", " – at last.", ", as she always does.", " at the café."]) for ending in endings]
        order = rng.sample(range(4), 4)
        context = f"{rng.choice(PEOPLE)} {start} {rng.choice(objects)}. {rng.choice(LINKS)} the person"
        if rng.random() < 0.1:
            # lm-eval counts spaces at the end to the ending.
            context += " "
        yield {"ctx": context, "endings": [endings[at] for at in order], "label": str(order.index(0))}


def arc(rng):
    for _ in range(20):
        left, right = rng.randrange(1, 6), rng.randrange(1, 5)
        wrong = rng.sample([n for n in range(1, 11) if n != left + right], 3)
        answers = [left + right, *wrong]
        rng.shuffle(answers)
        labels = rng.choice(["ABCD", "1234"])
        yield {
            "question": f"What is {NUMBERS[left - 1]} plus {NUMBERS[right - 1]}?",
            "choices": {"text": [NUMBERS[answer - 1] for answer in answers], "label": list(labels)},
            "answerKey": labels[answers.index(left + right)],
        }


def translation(rng):
    for at in range(40):
        scene = rng.choice(SCENES)
        words = f"{rng.choice(PEOPLE)} {scene[0]} {rng.choice(scene[1])}".split()
        if at % 3 == 0:
            yield {"source": " ".join(words[:6]), "target": " ".join(words[6:])}
        else:
            yield {"prompt": " ".join(words[:5]), "references": [" ".join(words[5:]), " ".join(words[5:] + ["again"])]}


def topics(rng):
    for _ in range(300):
        label = rng.choice(list(TOPICS))
        # A third of the fillers are of another topic.
        fillers = FILLERS[label if rng.random() < 0.67 else rng.choice(list(TOPICS))]
        text = rng.choice(TOPICS[label]).format(rng.choice(fillers)) + "."
        # A tenth of the labels are drawn anew, so that no probe is always right.
        yield {"text": text, "label": label if rng.random() < 0.9 else rng.choice(list(TOPICS))}


rng = random.Random(27)
write("choices.jsonl", choices(rng))
write("arc.jsonl", arc(rng))
write("translation.jsonl", translation(rng))
write("topics.jsonl", topics(rng))
