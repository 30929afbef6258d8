"""Prompts of the tests' own, `PROMPTS`: word problems, code, several scripts, 1 to 430 words.

They are what engine and Transformers must answer alike, so they vary in what makes token ids vary:
length, script, digits, indentation, punctuation. None is a benchmark's. For the tiny models, which
understand nothing, there are `token_prompts`.
"""

from __future__ import annotations

import random

from tests.support.tiny import VOCABULARY


def token_prompts(count: int, longest: int, seed: int, shortest: int = 1) -> list[list[int]]:
    """Token ids of a tiny model, of all lengths, special tokens (EOS and pad too) among them.

    A seed's prompts share no prefix with another's, so that the first call with them is a cold one.
    """
    generator = random.Random(seed)
    return [
        [generator.randrange(VOCABULARY) for _ in range(generator.randint(shortest, longest))]
        for _ in range(count)
    ]


def as_ids(prompts: list[list[int]]) -> list[dict[str, list[int]]]:
    """The form in which `generate` takes them."""
    return [{"prompt_token_ids": ids} for ids in prompts]


SHORT = [
    "Photosynthesis?",
    "Why is the sky blue?",
    "Write a haiku about rust.",
    "Is 91 a prime number? Answer yes or no, then say why.",
]

WORD_PROBLEMS = [
    "A baker sells 36 rolls in the morning and a third as many in the afternoon. How many rolls "
    "does he sell in the whole day?",
    "Tickets cost $7.50 for adults and $4 for children. What do 2 adults and 3 children pay?",
    "Jonas reads 12 pages a day from Monday to Friday and 30 pages on each day of the weekend. His "
    "book has 360 pages. How many weeks does he need?",
    "A shirt costs 40 euros. It is reduced by 25%, and then the reduced price by another 10%. What "
    "does it cost in the end?",
    "Five machines make five parts in five minutes. How long do 100 machines need for 100 parts?",
    "A farmer has hens and goats, 30 heads and 84 legs together. How many goats are there?",
    "In a class of 28 pupils, 17 play football, 12 play chess and 5 play both. How many play "
    "neither?",
]

CODE = [
    "What does this print?\n\n```python\nx = [1, 2, 3]\ny = x\ny.append(4)\nprint(len(x))\n```",
    "Explain: SELECT name, COUNT(*) FROM orders GROUP BY name HAVING COUNT(*) > 3 ORDER BY 2 DESC;",
    '{"id": 17, "tags": ["a", "b"], "price": 3.50, "stock": null}\nTurn this JSON into YAML.',
    '#!/bin/sh\nset -eu\nfor f in *.txt; do\n  mv -- "$f" "${f%.txt}.md"\ndone\n\n'
    "What does this script do, line by line?",
]

SCRIPTS = [
    "Quelle est la différence entre « savoir » et « connaître » ? Donne deux exemples.",
    "Столица Франции - какой это город? Ответь одним предложением.",
    "法国的首都是哪里?请用一句话回答。",
    "한국의 수도는 어디이고 인구는 얼마나 됩니까?",
    "מהי בירת צרפת?",
    "Say what each of these is: 🍎 🚲 🏔️ 👩‍🔬, and then ∑, √2, ½, π ≈ 3.14159.",
]

LONG = [
    "Here are the minutes of a meeting.\n\n"
    "- Anna: the printer on the second floor is broken again; she will call the service.\n"
    "- Bilal: the budget for the summer party is 1,200; last year it was 950.\n"
    "- Chen: the new door codes work from Monday; the old ones until Friday.\n"
    "- Dora: nobody has booked the large room for the 14th, so the training can be held there.\n"
    "- Emil: the coffee machine needs a new filter every six weeks, and it has been ten.\n\n"
    "Write one sentence for each person who has to do something, and leave out the others.",
    "The following class is meant to keep the last few values and to give their average. A "
    "colleague says that it is slow for large windows and wrong when fewer values than the window "
    "have been added.\n\n"
    "class Window:\n"
    "    def __init__(self, size):\n"
    "        self.size = size\n"
    "        self.values = []\n\n"
    "    def add(self, value):\n"
    "        self.values.append(value)\n"
    "        if len(self.values) > self.size:\n"
    "            self.values.pop(0)\n\n"
    "    def average(self):\n"
    "        return sum(self.values) / self.size\n\n"
    "    def __repr__(self):\n"
    '        return f"Window({self.size}, {self.values!r})"\n\n'
    "Is the colleague right about both? Rewrite the class so that `add` and `average` take "
    "constant time, keep the names of the methods, raise a ValueError where there is no value "
    "yet, and show with three asserts that your version is right.",
    "Read the report and answer the questions below it.\n\n"
    "The ferry Halvard left Norhavn at 06:15 with 212 passengers, 48 cars and 9 lorries. At 07:02 "
    "the captain reported that the port engine was running hot, and reduced speed from 18 to 11 "
    "knots. The engineer found that a cooling pump had failed; the spare pump on board was of the "
    "wrong size. At 07:40 the captain decided not to turn back, because the wind had freshened to "
    "7 from the north-west and the way to Sund was by then the shorter one. The company sent the "
    "tug Brage to meet the ferry off Kalven light, where it arrived at 08:25. The ferry went on "
    "under her own power, with the tug beside her, and made fast in Sund at 09:50, an hour and "
    "fifty minutes late. Nobody was hurt. Two passengers were treated for seasickness, and one car "
    "was damaged when a lorry shifted. The return trip was cancelled, and its 174 passengers were "
    "taken by bus and by the evening ferry.\n\n"
    "1. When should the ferry have arrived?\n2. Why did the captain not turn back?\n3. What was "
    "damaged, and by what?\n4. How many minutes passed between the first report and the tug's "
    "arrival?",
    "You are going to help me plan a walk of five days. I will tell you everything that I know, "
    "and then I will ask you for one thing only, so please read to the end before you answer.\n\n"
    "There are four of us. My sister Paula walks fast and gets bored when we stop. Her husband "
    "Henrik has a bad knee: uphill he is fine, downhill he needs time, and more than 700 metres of "
    "descent in a day are too much for him. Their daughter Ida is eleven and can walk about "
    "fifteen kilometres if there is something to look at, and about nine if there is not. I carry "
    "the heavy things, and I do not mind anything except heat.\n\n"
    "The path goes from Oberau to Sankt Veit. On the map it has these stages. From Oberau to the "
    "mill at Grund: 11 km, 350 m up, 120 m down, along a stream, with a place to swim. From Grund "
    "to the Falken hut: 9 km, 900 m up, 50 m down, in the forest at first and then over meadows. "
    "From the Falken hut to the Lerchen hut: 13 km, 400 m up, 450 m down, the whole day above the "
    "trees, with a view of the glacier and with no water on the way. From the Lerchen hut down to "
    "Matt: 8 km, 60 m up, 1,150 m down, steep, with a cable car that runs from nine to four except "
    "on Wednesdays. From Matt to Sankt Veit: 16 km, 200 m up, 380 m down, on a small road, mostly "
    "in the sun, with a bus every two hours.\n\n"
    "We arrive in Oberau on a Saturday at noon and must be in Sankt Veit on Wednesday before six "
    "in the evening, because the last train leaves at 18:20. The huts are full on Saturdays and "
    "cost 42 a night with breakfast, half for children; the mill at Grund costs 30 for everybody. "
    "In Matt there is a guest house for 55. We have 800 to spend on beds, all of us together, and "
    "we would like to keep at least 100 of it for ice cream, which is Ida's condition. The weather "
    "report says that it will be dry until Monday, that there may be thunderstorms on Tuesday "
    "after three in the afternoon, and that Wednesday will be the hottest day of the week.\n\n"
    "Here is my only question. On which one of the five days do you see the greatest difficulty "
    "for us, and what would you do about it?",
]

PROMPTS = SHORT + WORD_PROBLEMS + CODE + SCRIPTS + LONG
