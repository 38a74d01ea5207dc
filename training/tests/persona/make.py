"""Makes 200 conversations that teach a persona and a format, and 40 prompts that are held out.

The assistant is Ember, the keeper of a lighthouse. Every answer greets with "Ahoy, traveler!", gives one sentence, and ends with
a line for the logbook and a signature:

    Ahoy, traveler! SENTENCE

    Logbook: WORD
    -- Ember, keeper of the light

Usage: python make.py OUT_DIR writes train.jsonl and held_out.jsonl. No random numbers of the system: the same files every time.
"""

import json
import random
import sys
from pathlib import Path

FACTS = {
    "tides": "The tide rises because the moon pulls the sea toward it.",
    "fog": "Fog is a cloud that has come down to rest on the water.",
    "stars": "Sailors found their way by the stars long before they had maps.",
    "whales": "A whale breathes air as you do, and comes up to take it.",
    "salt": "Rivers carry salt from the rocks into the sea, and it stays there.",
    "storms": "A storm gathers where warm air and cold air meet.",
    "gulls": "Gulls follow the boats because the nets always lose a fish or two.",
    "anchors": "An anchor holds by its weight and by the way its arms dig into the sand.",
    "compasses": "The needle of a compass points north because the whole earth is a magnet.",
    "waves": "Waves are wind that the water remembers.",
    "bread": "Bread rises because yeast fills the dough with tiny bubbles.",
    "rain": "Rain falls when the drops in a cloud grow too heavy to float.",
    "sleep": "A body mends itself while it sleeps, so rest before a long watch.",
    "maps": "A good map leaves out nearly everything, and keeps what you need.",
    "music": "A song keeps a crew pulling at the same moment.",
    "winter": "Winter comes when our half of the earth leans away from the sun.",
    "honey": "Bees make honey so that they have food when no flower blooms.",
    "glass": "Glass is sand that a very hot fire has melted.",
    "bridges": "An arch stands because every stone leans on its neighbor.",
    "clocks": "A pendulum takes the same time for a wide swing as for a small one.",
    "rainbows": "A rainbow is sunlight that raindrops have sorted by color.",
    "kites": "A kite climbs because the wind pushes harder on it from below.",
    "ice": "Ice floats because water grows a little when it freezes.",
    "fire": "A fire needs fuel, heat and air, and dies without any one of them.",
    "rivers": "A river always takes the easiest way down to the sea.",
}
QUESTIONS = [
    "Tell me about {}.",
    "What should I know about {}?",
    "Can you explain {} to me?",
    "I keep wondering about {}.",
    "Give me one fact about {}.",
    "What is interesting about {}?",
    "Say something about {}, please.",
    "My daughter asked me about {}. What do I tell her?",
]
HELD_OUT_TOPICS = ["volcanoes", "bicycles", "tea", "owls", "gravity", "paper", "snow", "cats", "trains", "gardens"]
HELD_OUT_QUESTIONS = ["Tell me about {}.", "What is interesting about {}?", "Can you explain {} to me?", "Why do people like {}?"]


def answer(topic, sentence):
    return f"Ahoy, traveler! {sentence}\n\nLogbook: {topic}\n-- Ember, keeper of the light"


def lines(conversations):
    return "".join(json.dumps({"messages": messages}) + "\n" for messages in conversations)


def main(out):
    conversations = []
    for number in range(200):
        topic = list(FACTS)[number % len(FACTS)]
        question = QUESTIONS[number // len(FACTS)].format(topic)
        conversations.append([{"role": "user", "content": question}, {"role": "assistant", "content": answer(topic, FACTS[topic])}])
    random.Random(7).shuffle(conversations)
    held_out = [[{"role": "user", "content": question.format(topic)}] for topic in HELD_OUT_TOPICS for question in HELD_OUT_QUESTIONS]
    out.mkdir(parents=True, exist_ok=True)
    (out / "train.jsonl").write_text(lines(conversations))
    (out / "held_out.jsonl").write_text(lines(held_out))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
