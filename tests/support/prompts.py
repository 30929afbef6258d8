"""Fifty prompts of the tests' own, `PROMPTS`: word problems, code, several scripts, 1 to 430 words.

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
    "Hi",
    "Photosynthesis?",
    "Count to ten.",
    "Why is the sky blue?",
    "Name three rivers in Africa.",
    "Write a haiku about rust.",
    "Translate 'good night' into French.",
    "Is 91 a prime number? Answer yes or no, then say why.",
]

WORD_PROBLEMS = [
    "Mira has 14 marbles. She loses 5 and finds 3. How many marbles does she have now?",
    "A baker sells 36 rolls in the morning and a third as many in the afternoon. How many rolls "
    "does he sell in the whole day?",
    "A train leaves at 9:40 and arrives at 13:05. How long does the journey take?",
    "Tickets cost $7.50 for adults and $4 for children. What do 2 adults and 3 children pay?",
    "A tank holds 240 litres. A pump fills 18 litres a minute, and a leak loses 3 litres a minute. "
    "After how many minutes is the tank full?",
    "Jonas reads 12 pages a day from Monday to Friday and 30 pages on each day of the weekend. His "
    "book has 360 pages. How many weeks does he need?",
    "The sum of three consecutive whole numbers is 87. What are the numbers?",
    "A shirt costs 40 euros. It is reduced by 25%, and then the reduced price by another 10%. What "
    "does it cost in the end?",
    "A rectangle is three times as long as it is wide, and its perimeter is 64 cm. Find its area.",
    "Five machines make five parts in five minutes. How long do 100 machines need for 100 parts?",
    "Lea is twice as old as Tom was when Lea was as old as Tom is now. Tom is 24. How old is Lea?",
    "A farmer has hens and goats, 30 heads and 84 legs together. How many goats are there?",
    "A car uses 6.4 litres on 100 km. Fuel costs 1.85 a litre. What does a trip of 275 km cost? "
    "Think step by step and give the result with two decimals.",
    "In a class of 28 pupils, 17 play football, 12 play chess and 5 play both. How many play "
    "neither?",
]

CODE = [
    "Write a Python function that reverses a linked list.",
    "What does this print?\n\n```python\nx = [1, 2, 3]\ny = x\ny.append(4)\nprint(len(x))\n```",
    "Find the bug:\n\ndef mean(values):\n    total = 0\n    for v in values:\n        total += v\n"
    "        return total / len(values)\n",
    "Explain: SELECT name, COUNT(*) FROM orders GROUP BY name HAVING COUNT(*) > 3 ORDER BY 2 DESC;",
    "for (int i = 0; i < n; ++i) {\n\tif (a[i] % 2 == 0) {\n\t\tsum += a[i];\n\t}\n}\n"
    "Rewrite this loop in Rust with an iterator.",
    '{"id": 17, "tags": ["a", "b"], "price": 3.50, "stock": null}\nTurn this JSON into YAML.',
    "What is the regular expression ^\\d{3}-[A-Z]{2}$ good for? Give two strings that match it.",
    '#!/bin/sh\nset -eu\nfor f in *.txt; do\n  mv -- "$f" "${f%.txt}.md"\ndone\n\n'
    "What does this script do, line by line?",
]

SCRIPTS = [
    "Wo liegt der Bodensee, und welche drei Länder grenzen an ihn?",
    "Quelle est la différence entre « savoir » et « connaître » ? Donne deux exemples.",
    "¿Cuántos días tiene un año bisiesto y por qué existe?",
    "Столица Франции - какой это город? Ответь одним предложением.",
    "Ποια είναι η πρωτεύουσα της Ελλάδας;",
    "法国的首都是哪里?请用一句话回答。",
    "東京から京都まで新幹線でどのくらいかかりますか。",
    "한국의 수도는 어디이고 인구는 얼마나 됩니까?",
    "ما هي عاصمة مصر؟ وكم عدد سكانها؟",
    "מהי בירת צרפת?",
    "भारत की राजधानी क्या है?",
    "Say what each of these is: 🍎 🚲 🏔️ 👩‍🔬, and then ∑, √2, ½, π ≈ 3.14159.",
]

LONG = [
    # 60 words
    "I have a small balcony that faces north and gets about two hours of sun in summer. I would "
    "like to grow something that I can eat, I am away every other weekend, and I have never kept a "
    "plant alive for more than a month. Suggest three plants, and for each say how often it wants "
    "water and when I can harvest it.",
    # 100 words, a list
    "Here are the minutes of a meeting.\n\n"
    "- Anna: the printer on the second floor is broken again; she will call the service.\n"
    "- Bilal: the budget for the summer party is 1,200; last year it was 950.\n"
    "- Chen: the new door codes work from Monday; the old ones until Friday.\n"
    "- Dora: nobody has booked the large room for the 14th, so the training can be held there.\n"
    "- Emil: the coffee machine needs a new filter every six weeks, and it has been ten.\n\n"
    "Write one sentence for each person who has to do something, and leave out the others.",
    # 130 words, a table
    "The table shows the rain in millimetres that fell in four towns.\n\n"
    "| Town | Jan | Feb | Mar | Apr | May | Jun |\n"
    "|---|---:|---:|---:|---:|---:|---:|\n"
    "| Ashford | 81 | 64 | 52 | 49 | 55 | 47 |\n"
    "| Bellmoor | 120 | 98 | 91 | 70 | 66 | 71 |\n"
    "| Carrick | 44 | 39 | 40 | 51 | 63 | 78 |\n"
    "| Dunlow | 97 | 85 | 73 | 60 | 58 | 49 |\n\n"
    "Which town had the wettest spring (March to May), which had the driest winter (January and "
    "February), and in which town did the rain increase from every month to the next, beginning "
    "with February? Answer with the three names, in this order, and explain the third.",
    # 110 words, code
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
    # 150 words
    "Please correct the spelling and grammar of this letter, and change nothing else. Dear Sir or "
    "Madam, i am writting to complain about the washing maschine that I have bought in your shop "
    "at the third of March. It were delivered two weeks to late, and the men which brought it has "
    "left the packaging in my hall. When I turned it on for the first time, the water run out of "
    "the bottom, and my neighbour, that lives under me, were not amused. I have called your "
    "service four time. The first time nobody have answered, the second time I was told to wait, "
    "the third time the line was cutted, and the fourth time a friendly women said me that the "
    "guarantee do not cover water. I want that you repairs the machine until the end of this month "
    "or give me the money back. Yours faithfully, Ottilie Brandt",
    # 200 words
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
    # 300 words
    "Below is the draft of a talk for pupils of about fourteen. Say what the talk is about in two "
    "sentences, then name its weakest paragraph and give a reason.\n\n"
    "When you look at the sea on a quiet day you see a line where the water ends and the sky "
    "begins. For a long time people took that line for the end of everything. Sailors knew better. "
    "They saw that a ship that goes away does not get smaller and smaller until it is a dot: its "
    "hull goes first, then its sails, and last the top of the mast, as if it went down a hill. And "
    "they saw that in the south other stars came up, which nobody at home had ever seen.\n\n"
    "A man called Eratosthenes, who looked after the library of Alexandria, heard that in Syene, "
    "far in the south, the sun shone straight down a well at noon on the longest day of the year. "
    "In Alexandria it never did. He put a stick in the ground and measured its shadow: the sun "
    "stood a fiftieth of a circle away from the point above his head. So the way from Alexandria "
    "to Syene had to be a fiftieth of the way around the whole Earth. He multiplied, and was wrong "
    "by a few parts in a hundred at most.\n\n"
    "Today we have satellites, and anybody can look at a photograph of the Earth. Satellites are "
    "also used for television, for the weather, for maps on telephones and for many other things "
    "that are useful, and there are several thousand of them, and every year there are more.\n\n"
    "What I like about the stick is that it cost nothing. A man saw that two things that he had "
    "heard did not fit together, and he did not rest until they did.",
    # 430 words
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
