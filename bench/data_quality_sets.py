"""Generated data sets for the data check: healthy ones of many kinds, and the same ones ruined in many ways."""

# ruff: noqa: E501, ISC004, RUF001, S311, S608, SIM905 - generated text of many kinds; no secrets
import html
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Pair = tuple[str, str]
Row = dict[str, Any]
ROWS = 300

PEOPLE = (
    "Anna Bruno Clara David Elena Farid Greta Hugo Ines Jonas Kenji Lucia Marta Nadia Oscar Priya Quentin Rosa".split()
)
CITIES = "Lisbon Nairobi Osaka Tallinn Quito Dakar Bergen Izmir Hanoi Cusco Malmo Porto Tunis Sofia Perth Leeds".split()
ANIMALS = "otter heron lynx badger falcon gecko marmot tapir ibis walrus beaver stork puffin weasel raven toad".split()
FOODS = (
    "lentils rhubarb polenta tofu salmon quinoa chard barley okra figs leeks pumpkin hummus millet squid kale".split()
)
TOOLS = "lathe chisel microscope telescope compass loom anvil printer drill camera pulley crane sextant kiln".split()
FIELDS = "botany optics geology acoustics logistics weaving masonry robotics forestry metallurgy navigation".split()
VERBS = "observe measure repair describe compare protect collect sketch weigh transport calibrate restore".split()
REASONS = (
    "it saves time during the busy season",
    "the weather changes quickly near the coast",
    "older methods damaged the surface",
    "visitors often ask about it",
    "the budget was cut last year",
    "a small mistake can ruin weeks of work",
    "local rules require a written record",
    "the light is better in the morning",
    "nobody had documented the earlier attempts",
    "the material absorbs water",
)
OPENINGS = (
    "Start with a short plan.",
    "There are three things to keep in mind.",
    "Most experts recommend patience.",
    "A good rule is to write everything down.",
    "It depends on the season.",
    "In general, smaller steps work better.",
    "The simplest way is to ask a local guide.",
    "First check that the tools are clean.",
)
QUESTIONS = (
    "How do I {verb} a {animal} with a {tool} near {city}?",
    "Why would {person} {verb} the {tool} in {city}?",
    "What should {person} know about {field} before cooking {food}?",
    "Explain how {field} helps people in {city} to {verb} a {animal}.",
    "Write a short paragraph about {person}, a {animal} and some {food}.",
    "Give {person} advice on how to {verb} a {tool} for {field}.",
)
ANSWERS = (
    "{opening} {person} could {verb} the {animal} before noon, because {reason}. After that, rest the {tool} on dry ground"
    " and note the result.",
    "{opening} In {city} people who work in {field} usually {verb} things twice, since {reason}. A {tool} makes it easier.",
    "{opening} The {animal} is shy, so keep a distance of {number} metres. {person} learned this in {city}, where {reason}.",
    "{opening} Soak the {food} for {number} minutes and let it cool. Then ask {person} about {field}; {reason}.",
)


def _facts(draw: random.Random) -> dict[str, str]:
    return {
        "person": draw.choice(PEOPLE),
        "city": draw.choice(CITIES),
        "animal": draw.choice(ANIMALS),
        "food": draw.choice(FOODS),
        "tool": draw.choice(TOOLS),
        "field": draw.choice(FIELDS),
        "verb": draw.choice(VERBS),
        "reason": draw.choice(REASONS),
        "opening": draw.choice(OPENINGS),
        "number": str(draw.randrange(3, 90)),
    }


def make_instructions(draw: random.Random, count: int = ROWS) -> list[Pair]:
    """Questions with answers of two or three sentences."""
    rows = []
    for _ in range(count):
        facts = _facts(draw)
        answer = " ".join(text.format(**facts | {"reason": draw.choice(REASONS)}) for text in draw.sample(ANSWERS, 2))
        rows.append((draw.choice(QUESTIONS).format(**facts), answer))
    return rows


def _sentiment(draw: random.Random) -> Iterator[Pair]:
    good = ("I loved", "We enjoyed", "Great", "Wonderful", "I would buy again:")
    bad = ("I hated", "We regret", "Terrible", "Awful", "I want my money back for")
    for _ in range(ROWS):
        label = draw.choice(["positive", "negative", "negative", "positive", "neutral"])
        start = draw.choice(good if label == "positive" else bad if label == "negative" else ("I have",))
        facts = _facts(draw)
        yield f"{start} the {facts['tool']} from {facts['city']} that came with {facts['food']}.", label


def _spam(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        facts = _facts(draw)
        if draw.random() < 0.3:
            yield f"WIN a free {facts['tool']} now, call {draw.randrange(10**6)}!", "spam"
        else:
            yield f"Hi {facts['person']}, see you in {facts['city']} at {draw.randrange(1, 12)}?", "ham"


def _sentence_labels(draw: random.Random) -> Iterator[Pair]:
    for prompt, label in _sentiment(draw):
        yield f"Classify: {prompt}", f"The sentiment of this review is {label}."


def _sums(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        one, two = draw.randrange(1, 999), draw.randrange(1, 999)
        yield f"What is {one} + {two}?", str(one + two)


def _word_problems(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        one, two, facts = draw.randrange(3, 60), draw.randrange(3, 60), _facts(draw)
        yield (
            f"{facts['person']} has {one} {facts['food']} and buys {two} more in {facts['city']}. How many are there now?",
            f"{facts['person']} starts with {one} and adds {two}. {one} + {two} = {one + two}. #### {one + two}",
        )


def _latex(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        one, two = draw.randrange(2, 30), draw.randrange(2, 30)
        yield (
            f"Differentiate $f(x) = {one}x^{{{two}}}$.",
            f"By the power rule, $f'(x) = {one * two}x^{{{two - 1}}}$. \\boxed{{{one * two}x^{{{two - 1}}}}}",
        )


def _code(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        verb, thing, number = draw.choice(VERBS), draw.choice(TOOLS), draw.randrange(2, 99)
        body = draw.choice(
            [
                f"    return [item * {number} for item in {thing}s]",
                f'    print(f"{{{thing}s}} has {{len({thing}s)}} items\\n")\n    return {number}',
                f"    total = {number}\n    for item in {thing}s:\n        total += item\n    return total",
            ]
        )
        yield (
            f"Write a Python function that can {verb} {thing}s, with {number} as a constant.",
            f"```python\ndef {verb}_{thing}s({thing}s):\n{body}\n```",
        )


def _html_code(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        facts = _facts(draw)
        yield (
            f"Write an HTML list with {facts['food']} and {facts['animal']}, and the title {facts['city']}.",
            f"<h1>{facts['city']}</h1>\n<ul>\n  <li>{facts['food']}</li>\n  <li>{facts['animal']}</li>\n</ul>",
        )


def _sql(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        thing, city, number = draw.choice(TOOLS), draw.choice(CITIES), draw.randrange(100)
        yield (
            f"List all {thing}s in {city} that cost more than {number}.",
            f"SELECT * FROM {thing}s WHERE city = '{city}' AND price > {number};",
        )


def _shell(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        thing, number = draw.choice(TOOLS), draw.randrange(2, 90)
        yield (
            f"Find files that contain {thing} and are older than {number} days.",
            f"find . -name '*{thing}*' -mtime +{number} -print",
        )


def _extraction(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        facts = _facts(draw)
        yield (
            f"Extract the entities as JSON: {facts['person']} flew to {facts['city']} with {facts['number']} kg of"
            f" {facts['food']}.",
            json.dumps({"person": facts["person"], "city": facts["city"], "goods": facts["food"]}),
        )


def _tool_calls(draw: random.Random) -> Iterator[Row]:
    for _ in range(ROWS):
        facts = _facts(draw)
        call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": facts["city"]}}}
        yield {
            "messages": [
                {"role": "user", "content": f"Is it warm in {facts['city']} for {facts['person']}?"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": f"{facts['number']} degrees"},
                {"role": "assistant", "content": f"It is {facts['number']} degrees in {facts['city']}."},
            ]
        }


GERMAN = {
    "The cat sleeps in {city}.": "Die Katze schläft in {city}.",
    "{person} does not like {number} dogs.": "{person} mag {number} Hunde nicht.",
    "We travel from {city} to the sea.": "Wir reisen von {city} an das Meer.",
    "The house of {person} is old and small.": "Das Haus von {person} ist alt und klein.",
    "There are {number} books on the table.": "Es gibt {number} Bücher auf dem Tisch.",
}


def _translation(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        pairs, facts = draw.sample(sorted(GERMAN.items()), 2), _facts(draw)
        yield (
            " ".join(one for one, _ in pairs).format(**facts),
            " ".join(two for _, two in pairs).format(**facts),
        )


SPEECH = (
    (
        "¿Qué puedo ver en {city} con {person}?",
        "En {city} puedes ver el mercado y los jardines con {person}, por la mañana.",
    ),
    (
        "Que faire à {city} avec {person} ?",
        "À {city}, {person} peut visiter le musée et les marchés pendant {number} jours.",
    ),
    ("Was kann {person} in {city} machen?", "{person} kann in {city} das Museum besuchen und {number} Tage bleiben."),
    ("Что посмотреть в городе {city}?", "В городе {city} есть музей, старый мост и {number} парков."),
    ("{city}では何ができますか？", "{city}では博物館と{number}の公園を見ることができます。"),
    ("在{city}可以看什么？", "在{city}可以参观博物馆和{number}个公园。"),
    ("ماذا يمكن أن أرى في {city}؟", "في {city} يمكنك زيارة المتحف و {number} حديقة."),
    ("What can {person} see in {city}?", "In {city}, {person} can visit the museum and {number} of the parks."),
)


def _multilingual(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        prompt, answer = draw.choice(SPEECH)
        facts = _facts(draw)
        extra = draw.randrange(1000)
        yield f"{prompt.format(**facts)} ({extra})", f"{answer.format(**facts)}"


def _chinese(draw: random.Random) -> Iterator[Pair]:
    things, places = (
        "苹果 茶叶 自行车 电脑 雨伞 手机 钢琴 相机 地图 书架".split(),
        "北京 上海 广州 成都 西安 杭州".split(),
    )
    for _ in range(ROWS):
        thing, place, number = draw.choice(things), draw.choice(places), draw.randrange(2, 99)
        yield (
            f"请介绍{place}的{thing}，价格是{number}元。",
            f"{place}的{thing}很有名，质量好，{number}元并不贵，可以买来送给朋友。",
        )


def _short_facts(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        facts = _facts(draw)
        year = draw.randrange(1500, 2020)
        yield draw.choice(
            [
                (f"In which year was the {facts['tool']} museum of {facts['city']} {year % 97} opened?", str(year)),
                (f"Who runs the {facts['animal']} park {year} in {facts['city']}?", facts["person"]),
                (f"Does {facts['person']} of house {year} eat {facts['food']}?", draw.choice(["yes", "no"])),
            ]
        )


def _multiple_choice(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        options = draw.sample(ANIMALS, 4)
        listed = "\n".join(f"{letter}. {option}" for letter, option in zip("ABCD", options, strict=True))
        yield (
            f"Which animal lives in house {draw.randrange(9999)} of {draw.choice(CITIES)}?\n{listed}",
            draw.choice("ABCD"),
        )


def _summaries(draw: random.Random) -> Iterator[Pair]:
    for prompt, answer in make_instructions(draw):
        more = " ".join(text for _, text in make_instructions(draw, 3))
        yield (
            f"Summarize: {answer} {more}",
            f"It is about this: {answer.split('.')[1].strip()}. {prompt.split()[0]} matters.",
        )


def _dialogues(draw: random.Random) -> Iterator[Row]:
    for _ in range(ROWS):
        (one, two), (three, four) = make_instructions(draw, 2)
        yield {
            "conversations": [
                {"from": "human", "value": "Hi there!"},
                {"from": "gpt", "value": "Hello! How can I help you today?"},
                {"from": "human", "value": one},
                {"from": "gpt", "value": two},
                {"from": "human", "value": three},
                {"from": "gpt", "value": four},
            ]
        }


def _corrections(draw: random.Random) -> Iterator[Pair]:
    for _, answer in make_instructions(draw):
        wrong = answer.replace("the", "teh", 1).replace("usually", "usualy", 1)
        yield f"Correct the spelling: {wrong}", answer


def _tags(draw: random.Random) -> Iterator[Pair]:
    for prompt, _ in make_instructions(draw):
        words = prompt.rstrip("?.").split()
        yield " ".join(words), " ".join(draw.choice(["O", "B-PER", "B-LOC", "O"]) for _ in words)


def _markdown(draw: random.Random) -> Iterator[Pair]:
    for prompt, answer in make_instructions(draw):
        points = "\n".join(f"- **{part.split()[0]}**: {part.strip()}" for part in answer.split(".") if part.strip())
        yield prompt, f"## Answer\n\n{points}\n"


def _titles(draw: random.Random) -> Iterator[Pair]:
    for prompt, answer in make_instructions(draw):
        yield f"Write a headline for: {answer}", prompt.rstrip("?.").title().replace("How Do I", "Ways to")


def _urls(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        city, number = draw.choice(CITIES), draw.randrange(9999)
        yield (
            f"Give me a link to ticket {number} of the museum of {city}.",
            (f"You can find ticket {number} here: https://{city.lower()}-museum.example/tickets/{number}"),
        )


def _poems(draw: random.Random) -> Iterator[Pair]:
    for _ in range(ROWS):
        facts = _facts(draw)
        lines = [f"The {draw.choice(ANIMALS)} of {draw.choice(CITIES)} sings" for _ in range(2)]
        lines += [f"while {draw.choice(PEOPLE)} the {draw.choice(TOOLS)} brings"]
        yield f"Write a poem about {facts['person']} and {facts['food']} number {facts['number']}.", ",\n".join(lines)


HEALTHY: dict[str, Callable[[random.Random], Any]] = {
    "instructions": make_instructions,
    "sentiment": _sentiment,
    "spam": _spam,
    "sentence labels": _sentence_labels,
    "sums": _sums,
    "word problems": _word_problems,
    "latex": _latex,
    "python": _code,
    "html": _html_code,
    "sql": _sql,
    "shell": _shell,
    "extraction": _extraction,
    "tool calls": _tool_calls,
    "translation": _translation,
    "multilingual": _multilingual,
    "chinese": _chinese,
    "short facts": _short_facts,
    "multiple choice": _multiple_choice,
    "summaries": _summaries,
    "dialogues": _dialogues,
    "corrections": _corrections,
    "tags": _tags,
    "markdown": _markdown,
    "titles": _titles,
    "links": _urls,
    "poems": _poems,
    "documents": lambda draw: [{"text": " ".join(text for _, text in make_instructions(draw, 4))} for _ in range(ROWS)],
    "lower case": lambda draw: [(one.lower(), two.lower()) for one, two in make_instructions(draw)],
}

REFUSAL = "I'm sorry, but I can't help with that request."
WALLS = (
    "We use cookies to improve {site}. Accept all or manage preferences. Privacy policy.",
    "{site} needs your consent: partners store cookies on your device. Reject all. Accept all.",
    "Please enable JavaScript to view {site}. Checking your browser before access.",
    "Subscribe to our newsletter! Sign up for {site}. All rights reserved. Terms of use.",
    "Skip to content. Home About Contact us. Log in. {site} copyright 2021. Follow us.",
)
ERRORS = (
    "Error code: 429 - rate limit exceeded for {n}",
    "Internal server error (request {n})",
    "Request timed out after {n} ms, please try again later",
    "openai.APIConnectionError: Connection error {n}",
)


def _shuffle_words(draw: random.Random, text: str) -> str:
    words = text.split()
    draw.shuffle(words)
    return " ".join(words)


def _drop_letters(draw: random.Random, text: str, share: float) -> str:
    return "".join(char for char in text if not char.isalpha() or draw.random() > share)


def _mojibake(text: str) -> str:
    accents = str.maketrans({"e": "é", "'": "’", "o": "ö"})
    return text.translate(accents).encode().decode("cp1252", "replace")


Ruin = Callable[[random.Random, list[Pair]], list[Any]]


def _each(change: Callable[[random.Random, int, Pair], Pair]) -> Ruin:
    return lambda draw, rows: [change(draw, at, row) for at, row in enumerate(rows)]


def _some(share: float, change: Callable[[random.Random, int, Pair], Pair]) -> Ruin:
    return lambda draw, rows: [change(draw, at, row) if draw.random() < share else row for at, row in enumerate(rows)]


def _answer(change: Callable[[random.Random, str], str]) -> Ruin:
    return _each(lambda draw, _, row: (row[0], change(draw, row[1])))


def _shift(_draw: random.Random, rows: list[Pair]) -> list[Pair]:
    return [(prompt, rows[at - 1][1]) for at, (prompt, _) in enumerate(rows)]


def _shuffle_rows(draw: random.Random, rows: list[Pair]) -> list[Pair]:
    answers = [answer for _, answer in rows]
    draw.shuffle(answers)
    return [(prompt, answer) for (prompt, _), answer in zip(rows, answers, strict=True)]


RUINS: dict[str, Ruin] = {
    "every answer empty": _answer(lambda _, __: ""),
    "17 % empty": _some(0.17, lambda _, __, row: (row[0], "")),
    "17 % white space": _some(0.17, lambda _, __, row: (row[0], " \n\t ")),
    "one prompt": _each(lambda _, __, row: ("Tell me something.", row[1])),
    "mojibake": _answer(lambda _, text: _mojibake(text)),
    "html": _answer(lambda _, text: f"<div class='a'><p>{text.replace('. ', '.</p><p>')}</p></div>"),
    "constant answer": _answer(lambda _, __: "Thank you for your message, we will come back to you."),
    "constant word": _answer(lambda _, __: "OK"),
    "echo": _each(lambda _, __, row: (row[0], row[0])),
    "code in one line": lambda draw, _rows: [(prompt, " ".join(code.split())) for prompt, code in _code(draw)],
    "question before code": lambda draw, _rows: [(prompt, f"{prompt}\n{code}") for prompt, code in _code(draw)],
    "printed records": _answer(lambda _, text: f"[{{'id': 'a{len(text)}', 'body': {text!r}, 'score': 3}}]"),
    "default label": lambda draw, _rows: [
        (prompt, label if draw.random() < 0.1 else "neutral") for prompt, label in _sentiment(draw)
    ],
    "no letter e": _each(lambda _, __, row: (row[0].replace("e", ""), row[1].replace("e", ""))),
    "letters missing": _each(lambda draw, _, row: (row[0], _drop_letters(draw, row[1], 0.1))),
    "no vowels": _answer(lambda _, text: "".join(char for char in text if char not in "aeiouAEIOU")),
    "cut at 80 characters": _answer(lambda _, text: text[:80]),
    "cut at 12 words": _answer(lambda _, text: " ".join(text.split()[:12])),
    "cut anywhere": _answer(lambda draw, text: text[: draw.randrange(len(text) // 2, len(text) - 3)]),
    "prompt in the answer": _each(lambda _, __, row: (row[0], f"{row[0]}\n{row[1]}")),
    "doubled": _answer(lambda _, text: f"{text} {text}"),
    "every word doubled": _answer(lambda _, text: " ".join(f"{word} {word}" for word in text.split())),
    "reversed": _answer(lambda _, text: text[::-1]),
    "words reversed": _answer(lambda _, text: " ".join(text.split()[::-1])),
    "words shuffled": _answer(_shuffle_words),
    "None": _some(0.2, lambda _, __, row: (row[0], "None")),
    "object": _some(0.2, lambda _, __, row: (row[0], "[object Object]")),
    "escaped newlines": _answer(lambda _, text: text.replace(". ", ".\\n")),
    "bytes": _answer(lambda _, text: repr(text.encode())),
    "entities": _answer(lambda _, text: html.escape(text.replace(" and ", " & ").replace(",", "'"))),
    "control characters": _answer(lambda _, text: text.replace(" ", "\x00", 3)),
    "special tokens": _answer(lambda _, text: f"{text}<|im_end|>"),
    "instruct tokens": _answer(lambda _, text: f"[INST] {text} </s>"),
    "roles in text": _answer(lambda _, text: f"{text}\nUser: And then?\nAssistant: {text[:30]}."),
    "form letter": _each(
        lambda draw, _, row: (row[0], f"Your ticket {draw.randrange(10**6)} was created and an agent will reply soon.")
    ),
    "about the prompt": _each(
        lambda _, __, row: (row[0], f"Here you can find all the important information on: {row[0]} Please contact us.")
    ),
    "no spaces": _answer(lambda _, text: text.replace(" ", "")),
    "word pieces": _answer(lambda _, text: text.replace("ing", " ##ing").replace("er", " ##er")),
    "question marks": _answer(lambda _, text: text.replace("e", "?")),
    "beginning cut": _answer(lambda _, text: text[23:].lstrip(".")),
}


def list_rows(rows: Any) -> list[Row]:
    """Pairs as rows of the format prompt-completion; other rows unchanged."""
    return [row if isinstance(row, dict) else {"prompt": row[0], "completion": row[1]} for row in rows]


def make_healthy(name: str) -> list[Row]:
    """Without duplicates, which another rule reports."""
    rows = list_rows(HEALTHY[name](random.Random(f"healthy {name}")))
    return list({json.dumps(row): row for row in rows}.values())


def make_ruined(name: str) -> list[Row]:
    draw = random.Random(f"ruined {name}")
    return list_rows(RUINS[name](draw, make_instructions(draw)))
