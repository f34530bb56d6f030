"""The words of which `bench_facts` makes documents, chats and questions.

A kind has subjects and attributes. An attribute has ways to state it and ways to ask for it, mostly
in other words. `{s}` is the subject, `{it}` what stands for it in a text about it, `{v}` the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Attribute:
    """Something that is so of one subject and otherwise of another."""

    values: tuple[str, ...]
    """Words, or `LOW-HIGH` for a whole number between."""
    named: tuple[str, ...]
    """Sentences that name the subject."""
    meant: tuple[str, ...]
    """Sentences that only mean it."""
    asked: tuple[str, ...]
    """Questions."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Subjects of one sort."""

    subjects: tuple[str, ...]
    opening: tuple[str, ...]
    """How a paragraph about a subject begins."""
    filler: tuple[str, ...]
    """Sentences about a subject that say nothing anybody asks for."""
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class Language:
    """All that is said in one language."""

    kinds: tuple[Kind, ...]
    general: tuple[str, ...]
    """Sentences about no subject at all."""
    space: str
    """Between sentences."""
    instruction: tuple[str, ...]
    markers: tuple[str, str]
    """What stands before a document, and before the question about it."""
    small_talk: tuple[tuple[str, str], ...]
    """What somebody says in a chat, and what the model answers."""
    lead: tuple[str, ...]
    """What somebody says before they tell about a subject; `{s}` is in it."""
    told: tuple[str, ...]
    """What a model says when it was told."""


_NAMES: Final = (
    "Larkspur", "Merrow", "Calderbeck", "Ostrel", "Wexcombe", "Halloran", "Tarnside", "Brindley",
    "Quillfeather", "Sandmoor", "Pellow", "Arkholme", "Dunmere", "Fennick", "Garsdale", "Inver",
    "Kestrel", "Lowther", "Mallow", "Norbeck", "Ravenshaw", "Selwick", "Thornby", "Ullock",
)  # fmt: skip
_PLACES: Final = (
    "Museum", "Clinic", "Library", "Brewery", "School", "Observatory", "Mill", "Boatyard", "Bakery",
    "Theatre",
)  # fmt: skip
_PEOPLE: Final = (
    "Ada Byrne", "Tomas Lindqvist", "Priya Raman", "Owen Hargreave", "Lucia Ferrante",
    "Yusuf Demir",
    "Hana Novak", "Miles Abernathy", "Ingrid Solberg", "Diego Castellan", "Nora Whitlock",
    "Samuel Okafor", "Greta Weiss", "Henrik Dahl", "Mei Tanaka", "Isla Drummond",
)  # fmt: skip
_SURNAMES: Final = (
    "Eleanor Pike", "Marcus Vane", "Rosalind Achebe", "Victor Tamm", "Cecily Rowe", "Anton Grell",
    "Miriam Stroud", "Felix Oduya", "Judith Kerr", "Roland Asp", "Vera Lomax", "Piers Caldwell",
)  # fmt: skip

_PLACE: Final = Kind(
    subjects=tuple(
        f"the {name} {_PLACES[number % len(_PLACES)]}" for number, name in enumerate(_NAMES)
    ),
    opening=(
        "{s} stands at the edge of the old town and is known well beyond the county.",
        "Few people pass {s} without stopping to look at it.",
        "The survey next turned to {s}, which the inspectors visited on a wet afternoon.",
        "{s} has always been spoken of with affection.",
    ),
    filler=(
        "Visitors to {s} often say that it is smaller than they expected.",
        "The garden behind {s} is looked after by neighbours.",
        "A painting of {s} hangs in the town hall.",
        "In spring the path to {s} floods, and everybody walks round by the orchard.",
        "Letters about {s} still arrive every week.",
        "Local children draw {s} in their first year at school.",
        "The lane past it is quiet on most days.",
        "Its windows face the river, which pleases photographers.",
        "The front steps were swept twice during the visit.",
        "Nobody could say who had planted the two limes.",
    ),
    attributes=(
        Attribute(
            ("1782-1989",),
            ("{s} was completed in {v}.", "{s} dates from {v}.", "Work on {s} ended in {v}."),
            ("It opened its doors in {v}.", "It goes back to {v}."),
            (
                "When was {s} built?",
                "What year was {s} finished?",
                "How old is {s}?",
                "In which year was {s} established?",
            ),
        ),
        Attribute(
            _SURNAMES,
            (
                "{s} is run by {v}.",
                "The director of {s} is {v}.",
                "{v} has been in charge of {s} since the spring.",
            ),
            ("Its present head is {v}.", "It answers to {v}."),
            (
                "Who leads {s}?",
                "Who is responsible for {s}?",
                "What is the name of the person who manages {s}?",
            ),
        ),
        Attribute(
            ("12-490",),
            (
                "{s} employs {v} people.",
                "{v} people work at {s}.",
                "The payroll of {s} lists {v} names.",
            ),
            ("It has a staff of {v}.", "Its workforce numbers {v}."),
            (
                "How many employees does {s} have?",
                "How large is the staff of {s}?",
                "How many people earn their living at {s}?",
            ),
        ),
        Attribute(
            ("31-986",),
            (
                "Building {s} cost {v} thousand pounds.",
                "{s} was paid for with {v} thousand pounds.",
                "The bill for {s} came to {v} thousand pounds.",
            ),
            (
                "It had swallowed {v} thousand pounds by the time the roof was on.",
                "Its construction came to {v} thousand pounds.",
            ),
            (
                "What was the price of building {s}?",
                "How much money was spent on {s}?",
                "How expensive was {s} to construct?",
            ),
        ),
        Attribute(
            ("slate", "copper", "thatch", "red tile", "zinc", "turf", "glass", "cedar shingle"),
            (
                "The roof of {s} is made of {v}.",
                "{s} is covered with {v}.",
                "A roof of {v} protects {s}.",
            ),
            ("It is roofed in {v}.", "Its roof is of {v}."),
            (
                "What material is the roof of {s}?",
                "What is {s} roofed with?",
                "Which material covers {s}?",
            ),
        ),
        Attribute(
            ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays"),
            (
                "{s} does not open on {v}.",
                "{s} is closed on {v}.",
                "On {v} the gates of {s} stay shut.",
            ),
            ("It is not open on {v}.", "It keeps its doors locked on {v}."),
            (
                "On which day is {s} shut?",
                "Which day of the week should one not visit {s}?",
                "When is {s} closed?",
            ),
        ),
    ),
)
_DEVICE: Final = Kind(
    subjects=tuple(
        f"{sort} {letter}-{number}"
        for sort, letter, number in (
            ("pump", "P", 204), ("pump", "P", 317), ("valve", "V", 118), ("valve", "V", 442),
            ("boiler", "B", 12), ("boiler", "B", 27), ("compressor", "C", 51),
            ("compressor", "C", 88), ("chiller", "K", 9), ("chiller", "K", 33), ("fan", "F", 160),
            ("fan", "F", 275), ("mixer", "M", 74), ("dryer", "D", 41),
        )
    ),
    opening=(
        "This section describes {s}, which every operator must know before a shift.",
        "{s} is part of the main line and may not be moved.",
        "Read all of this before you switch on {s}.",
    ),
    filler=(
        "Keep the area around {s} dry and free of tools.",
        "The label on {s} must be readable from the walkway.",
        "Report any unusual noise from {s} to the control room.",
        "Wear gloves when you open it.",
        "Its cover is held by four bolts.",
        "Wipe the housing of {s} with a dry cloth only.",
        "It may feel warm to the touch for some time after it stops.",
        "A copy of the drawing of {s} is kept in the cabin.",
        "Do not lean ladders against it.",
    ),
    attributes=(
        Attribute(
            ("11-94",),
            (
                "The highest pressure allowed for {s} is {v} bar.",
                "{s} must never exceed {v} bar.",
                "{s} is rated for {v} bar.",
            ),
            ("It withstands at most {v} bar.", "Its limit is {v} bar."),
            (
                "What is the maximum pressure of {s}?",
                "How many bar can {s} take?",
                "Up to which pressure may {s} be operated?",
            ),
        ),
        Attribute(
            ("110-980",),
            (
                "{s} is serviced after every {v} hours of operation.",
                "Maintenance of {s} is due every {v} hours.",
                "Inspect {s} each time it has run for {v} hours.",
            ),
            ("It needs a service every {v} hours.", "Its maintenance interval is {v} hours."),
            (
                "How often does {s} need maintenance?",
                "After how many hours is {s} serviced?",
                "What is the service interval of {s}?",
            ),
        ),
        Attribute(
            ("mineral oil", "graphite grease", "silicone paste", "castor oil", "lithium grease",
             "molybdenum spray"),
            (
                "Use only {v} to lubricate {s}.",
                "{s} is lubricated with {v}.",
                "The bearings of {s} run in {v}.",
            ),
            ("It takes {v} and nothing else.", "Its bearings need {v}."),
            (
                "Which lubricant does {s} require?",
                "What should {s} be lubricated with?",
                "Which grease or oil is right for the bearings of {s}?",
            ),
        ),
        Attribute(
            ("east hall", "north gallery", "cellar", "roof deck", "loading bay", "old boiler house",
             "river annex"),
            (
                "{s} is installed in the {v}.",
                "{s} stands in the {v}.",
                "You find {s} in the {v}.",
            ),
            ("It was moved to the {v} last year.", "Its place is the {v}."),
            (
                "Where is {s}?",
                "In which part of the plant is {s} located?",
                "Where do I find {s}?",
            ),
        ),
        Attribute(
            ("E14", "E27", "E39", "E52", "E61", "E73", "E88", "E95"),
            (
                "{s} shows the code {v} when it overheats.",
                "Overheating of {s} is reported as {v}.",
                "When {s} gets too hot, the display reads {v}.",
            ),
            ("If it overheats, it reports {v}.", "It signals overheating with {v}."),
            (
                "Which error code means that {s} is too hot?",
                "What does {s} display when it overheats?",
                "What is the overheating code of {s}?",
            ),
        ),
    ),
)  # fmt: skip
_PERSON: Final = Kind(
    subjects=_PEOPLE,
    opening=(
        "{s} was interviewed for this volume over two long evenings.",
        "Everybody in the valley knows {s}, by sight if not by name.",
        "The editors wrote to {s} three times before an answer came.",
    ),
    filler=(
        "Friends of {s} speak of a dry sense of humour.",
        "A photograph of {s} at the harbour was printed in the local paper.",
        "{s} does not like to be thanked.",
        "Few of the letters that {s} wrote have survived.",
        "There was tea, and then more tea.",
        "Those who met {s} late in life remember the hats.",
        "The house was full of clocks, none of which agreed.",
    ),
    attributes=(
        Attribute(
            ("1921-1994",),
            (
                "{s} was born in {v}.",
                "{v} was the year of birth of {s}.",
                "The parish book gives {v} for the birth of {s}.",
            ),
            ("This child of a lighthouse keeper came into the world in {v}.",),
            (
                "When was {s} born?",
                "What is the birth year of {s}?",
                "In which year did the life of {s} begin?",
            ),
        ),
        Attribute(
            ("glassblower", "surveyor", "cellist", "beekeeper", "locksmith", "translator",
             "shipwright", "botanist", "typesetter", "vet"),
            (
                "{s} worked as a {v}.",
                "{s} trained as a {v} and stayed in that trade.",
                "By profession {s} was a {v}.",
            ),
            ("The trade of this quiet neighbour was that of a {v}.",),
            (
                "What was the occupation of {s}?",
                "What did {s} do for a living?",
                "Which profession did {s} have?",
            ),
        ),
        Attribute(
            ("Lisbon", "Tallinn", "Cork", "Trieste", "Bergen", "Ghent", "Krakow", "Valencia",
             "Leipzig", "Porto"),
            (
                "{s} moved to {v} as a young adult.",
                "{s} has lived in {v} for most of the time since.",
                "{v} became the home of {s}.",
            ),
            ("This traveller settled in {v} in the end.",),
            (
                "Where does {s} live?",
                "Which city did {s} move to?",
                "In which town is the home of {s}?",
            ),
        ),
        Attribute(
            ("walnuts", "penicillin", "shellfish", "latex", "bee stings", "celery", "cats",
             "sesame"),
            (
                "{s} is allergic to {v}.",
                "{s} cannot go near {v} without a rash.",
                "Doctors warned {s} about {v} after a severe reaction.",
            ),
            ("Their only allergy is to {v}.",),
            (
                "What is {s} allergic to?",
                "Which allergy does {s} have?",
                "What must {s} avoid for health reasons, such as a rash or an allergic reaction?",
            ),
        ),
    ),
)  # fmt: skip

_LEASE: Final = Kind(
    subjects=tuple(
        f"flat {number} in {street}"
        for number, street in (
            ("3A", "Quay Street"), ("7", "Mill Lane"), ("12B", "Abbey Road"), ("5", "Dock Parade"),
            ("21", "Chapel Hill"), ("9C", "Ferry Row"), ("14", "Station Walk"), ("2", "Rose Court"),
            ("18", "Harbour View"), ("6D", "Castle Gate"), ("31", "Brook Terrace"),
        )
    ),
    opening=(
        "The file on {s} was opened by the agency and has been complete ever since.",
        "What has been agreed for {s} is set out here.",
        "This part concerns {s} only.",
    ),
    filler=(
        "The hall of {s} was painted by the last tenant.",
        "Post for {s} is left with the caretaker.",
        "Neighbours of {s} have asked for a second bicycle stand.",
        "The meter cupboard is behind the stairs.",
        "It gets the sun in the afternoon.",
        "An inventory of {s} is attached.",
        "The keys were handed over in an envelope.",
    ),
    attributes=(
        Attribute(
            ("410-1980",),
            (
                "The rent for {s} is {v} pounds a month.",
                "For {s} the tenant pays {v} pounds every month.",
                "{s} is let at {v} pounds a month.",
            ),
            ("It costs {v} pounds a month.", "Its monthly rent comes to {v} pounds."),
            (
                "How much is the rent of {s}?",
                "What does a tenant pay per month for {s}?",
                "What is the monthly price of {s}?",
            ),
        ),
        Attribute(
            ("three weeks", "six weeks", "two months", "three months", "ten weeks", "half a year"),
            (
                "The lease of {s} can be ended with {v} of notice.",
                "Whoever wants to leave {s} must say so {v} ahead.",
                "Notice for {s} is {v}.",
            ),
            ("It may be given up with {v} of notice.",),
            (
                "What is the notice period for {s}?",
                "How long before leaving {s} must the tenant give notice?",
                "How much notice ends the lease of {s}?",
            ),
        ),
        Attribute(
            ("no dogs", "no cats", "no smoking", "no piano", "no barbecue", "no aquarium",
             "no motorcycles"),
            (
                "The house rules for {s} allow {v}.",
                "In {s} there may be {v}.",
            ),
            ("Its house rules say {v}.",),
            (
                "What is forbidden in {s}?",
                "What do the house rules of {s} not allow?",
                "What may the tenant of {s} not have or do according to the rules?",
            ),
        ),
        Attribute(
            ("gas", "oil", "wood pellets", "district heat", "a heat pump", "night storage heaters"),
            (
                "{s} is heated with {v}.",
                "Heating in {s} comes from {v}.",
            ),
            ("It is kept warm by {v}.", "Its heating runs on {v}."),
            (
                "How is {s} heated?",
                "What kind of heating does {s} have?",
                "What keeps {s} warm in winter?",
            ),
        ),
    ),
)  # fmt: skip
_ROUTE: Final = Kind(
    subjects=(
        "the Heron Trail", "the Saltmarsh Loop", "the Ridge Path", "the Copper Way",
        "the Monks' Walk", "the Glen Circuit", "the Lighthouse Track", "the Drovers' Road",
        "the Peat Line", "the Falls Route", "the Beacon Round", "the Quarry Steps",
    ),
    opening=(
        "{s} is one of those walks that people take again.",
        "Our next suggestion is {s}.",
        "Two of our readers wrote to us about {s}.",
    ),
    filler=(
        "Parts of {s} are muddy after rain.",
        "There are benches along {s}, most of them with a view.",
        "The signs on {s} were renewed by volunteers.",
        "Dogs must be kept on a lead.",
        "It is pleasant in the evening light.",
        "On {s} you may meet nobody for an hour.",
        "Its middle part leads through a wood.",
    ),
    attributes=(
        Attribute(
            ("4-29",),
            (
                "{s} is {v} kilometres long.",
                "From end to end {s} measures {v} kilometres.",
                "Count on {v} kilometres for {s}.",
            ),
            ("It covers {v} kilometres.", "Its length is {v} kilometres."),
            (
                "How long is {s}?",
                "What distance does one walk on {s}?",
                "How many kilometres is {s}?",
            ),
        ),
        Attribute(
            ("the chapel", "the old kiln", "the ferry pier", "the sheep pens", "the stone bridge",
             "the forester's lodge", "the signal box"),
            (
                "{s} begins at {v}.",
                "You join {s} at {v}.",
                "The first marker of {s} is by {v}.",
            ),
            ("It starts from {v}.", "Its starting point is {v}."),
            (
                "Where does {s} start?",
                "At what place does one set out on {s}?",
                "What is the starting point of {s}?",
            ),
        ),
        Attribute(
            ("loose scree", "sudden tides", "falling branches", "adders", "a bull in the meadow",
             "slippery planks", "shooting on weekdays"),
            (
                "Beware of {v} on {s}.",
                "The one danger of {s} is {v}.",
                "Walkers on {s} have been hurt by {v}.",
            ),
            ("It has a single danger: {v}.",),
            (
                "What should walkers watch out for on {s}?",
                "What is dangerous about {s}?",
                "Which hazard is there on {s}?",
            ),
        ),
        Attribute(
            ("bus 14", "bus 27", "bus 33", "bus 48", "bus 52", "bus 61", "bus 75"),
            (
                "To reach {s}, take {v}.",
                "{v} stops at {s}.",
                "{s} is served by {v}.",
            ),
            ("It can be reached with {v}.",),
            (
                "How do I get to {s} by public transport?",
                "Which bus goes to {s}?",
                "What line must I take for {s}?",
            ),
        ),
    ),
)  # fmt: skip

ENGLISH: Final = Language(
    kinds=(_PLACE, _DEVICE, _PERSON, _LEASE, _ROUTE),
    general=(
        "The weather during the weeks of the survey was mild for the season.",
        "All figures were checked by a second reader before they were printed.",
        "Maps are not drawn to scale.",
        "The authors thank those who lent papers and asked for nothing in return.",
        "Some of what follows was told to us in confidence and has been left out.",
        "A longer version of these notes is kept in the archive.",
        "Where sources differ, the later one was preferred.",
        "The order of the entries has no meaning.",
        "It is hoped that a second volume will follow.",
        "Opinions in this text are those of the people who gave them.",
        "Spelling has been made uniform throughout.",
        "Footnotes in the first edition have been worked into the text.",
    ),
    space=" ",
    instruction=(
        "Answer the question from the document below. If it is not in there, say so.",
        "You are given a text. Read it with care and answer in one sentence.",
        "Use only what the following text says.",
    ),
    markers=("Document:", "Question:"),
    small_talk=(
        (
            "Can you recommend something for a rainy weekend?",
            (
                "A long book and a slow soup go well together. If you would rather go out, indoor "
                "markets are pleasant when it rains, and they are seldom crowded in the morning."
            ),
        ),
        (
            "How do I keep basil alive on the windowsill?",
            (
                "Water it from below, keep it out of draughts, and pick the top pairs of leaves. "
                "Most plants from the shop are too crowded: split them into two pots."
            ),
        ),
        (
            "Explain briefly why bread goes stale.",
            (
                "Its starch slowly forms crystals and pushes water out. That happens fastest in "
                "the fridge, so keep it in paper at room temperature or freeze it in slices."
            ),
        ),
        (
            "Write a friendly line for a birthday card.",
            (
                "Another lap around the sun, and you still make it look easy. Have a wonderful day "
                "full of cake and people you like."
            ),
        ),
        (
            "What is a good way to learn the names of trees?",
            (
                "Start with five that grow on your street. Learn their bark in winter, then "
                "their leaves in spring. A small notebook helps more than an app."
            ),
        ),
        (
            "Is it rude to eat soup with bread in the other hand?",
            (
                "At home certainly not. At a formal table one puts the bread down between bites, "
                "but few hosts would mind."
            ),
        ),
        (
            "Give me a tongue twister.",
            "Six slick ships slipped silently south. Say it three times without a pause.",
        ),
        (
            "Why do cats knock things off tables?",
            (
                "They test what moves, they like the noise, and it brings people into the "
                "room. A bored cat does it more often than one that was played with."
            ),
        ),
    ),
    lead=(
        "For later: I need to keep some details about {s} together.",
        "Let me tell you about {s} while I remember it.",
        "Here are my notes on {s}.",
    ),
    told=(
        "Thanks, I have taken that down. Tell me when there is more.",
        "Understood. I will keep it in mind for the rest of our conversation.",
        "Noted. Do you want me to put this into a table later?",
    ),
)

_ZH_PLACE: Final = Kind(
    subjects=(
        "青石博物馆", "临河诊所", "望岭图书馆", "长桥酒坊", "东篱小学", "北坡天文台", "柳溪磨坊",
        "白沙船厂", "南巷面包房", "听雨剧院", "云台博物馆", "石门诊所", "竹园图书馆", "古渡酒坊",
        "松岗小学", "海岬天文台", "红枫磨坊", "鹭湾船厂",
    ),
    opening=(
        "{s}坐落在老城边上，远近闻名。",
        "路过{s}的人很少有不停下来看一眼的。",
        "调查组随后在一个下雨的下午走访了{s}。",
        "当地人提起{s}总是带着感情。",
    ),
    filler=(
        "来过{s}的游客常说那里比想象中要小。",
        "{s}后面的花园由邻居们照看。",
        "镇政府的走廊里挂着一幅画着{s}的油画。",
        "春天通往{s}的小路会被水淹，大家都从果园绕过去。",
        "每个星期仍有人写信询问{s}。",
        "门前的石阶在走访期间扫了两遍。",
        "没有人说得清那两棵椴树是谁种的。",
        "它的窗户朝着河，摄影的人很喜欢。",
    ),
    attributes=(
        Attribute(
            ("1782-1989",),
            ("{s}建成于{v}年。", "{s}的历史可以追溯到{v}年。", "{v}年，{s}正式落成。"),
            ("它于{v}年开门迎客。", "其始建年份为{v}年。"),
            ("{s}是哪一年建的？", "{s}什么时候建成？", "{s}有多少年历史了，始于哪年？"),
        ),
        Attribute(
            ("沈若川", "顾明远", "何秋棠", "陆景行", "温如玉", "薛知白", "祝青岚", "方砚秋"),
            ("{s}由{v}主持。", "{s}的负责人是{v}。", "{v}从今年春天起掌管{s}。"),
            ("它现任的领导是{v}。", "这里的事情都由{v}说了算。"),
            ("谁负责管理{s}？", "{s}的领导叫什么名字？", "{s}现在归谁管？"),
        ),
        Attribute(
            ("12-490",),
            ("{s}雇有{v}名员工。", "在{s}工作的有{v}人。", "{s}的工资册上有{v}个名字。"),
            ("它的职工共有{v}人。", "其人员编制为{v}人。"),
            ("{s}有多少员工？", "{s}一共有多少人上班？", "{s}的职工人数是多少？"),
        ),
        Attribute(
            ("31-986",),
            ("修建{s}花了{v}万元。", "{s}的造价为{v}万元。", "为了{s}，镇上拿出了{v}万元。"),
            ("它前后耗资{v}万元。", "其建设费用共计{v}万元。"),
            ("建造{s}用了多少钱？", "{s}的建设成本是多少？", "{s}总共投入了多少资金？"),
        ),
        Attribute(
            ("青瓦", "铜板", "茅草", "红瓦", "锌板", "草皮", "玻璃", "杉木板"),
            ("{s}的屋顶是{v}的。", "{s}顶上铺着{v}。", "{s}用{v}盖顶。"),
            ("它的房顶用的是{v}。",),
            ("{s}的屋顶是什么材料？", "{s}的房顶用什么做的？", "{s}屋面铺的是哪种材料？"),
        ),
        Attribute(
            ("星期一", "星期二", "星期三", "星期四", "星期五", "星期六", "星期日"),
            ("{s}{v}不开门。", "{s}每逢{v}闭馆休息。", "每到{v}，{s}大门紧闭。"),
            ("它{v}不对外开放。",),
            ("{s}星期几休息？", "{s}哪天关门？", "星期几不要去{s}？"),
        ),
    ),
)  # fmt: skip
_ZH_DEVICE: Final = Kind(
    subjects=(
        "P-204号水泵", "P-317号水泵", "V-118号阀门", "V-442号阀门", "B-12号锅炉", "B-27号锅炉",
        "C-51号压缩机", "C-88号压缩机", "K-9号冷水机", "K-33号冷水机", "F-160号风机", "F-275号风机",
        "M-74号搅拌机", "D-41号烘干机",
    ),
    opening=(
        "本节说明{s}，每位操作人员上岗前都必须熟悉。",
        "{s}是主线的一部分，不得移动。",
        "启动{s}之前请读完本节。",
    ),
    filler=(
        "{s}周围应保持干燥，不得堆放工具。",
        "从走道上应能看清{s}的铭牌。",
        "{s}如有异常响声，请报告控制室。",
        "打开时请戴手套。",
        "它的盖板由四颗螺栓固定。",
        "只能用干布擦拭{s}的外壳。",
        "停机后一段时间内它可能仍然发热。",
        "{s}的图纸存放在值班室。",
    ),
    attributes=(
        Attribute(
            ("11-94",),
            ("{s}允许的最高压力为{v}巴。", "{s}的压力不得超过{v}巴。", "{s}按{v}巴设计。"),
            ("它最多能承受{v}巴。", "其耐压上限是{v}巴。"),
            ("{s}的最大压力是多少？", "{s}能承受多少巴？", "{s}运行时压力上限是多少？"),
        ),
        Attribute(
            ("110-980",),
            ("{s}每运行{v}小时保养一次。", "{s}的维护周期为{v}小时。", "每过{v}小时应检修{s}。"),
            ("它每{v}小时需要维护一次。", "其保养间隔为{v}小时。"),
            ("{s}多久保养一次？", "{s}运行多少小时后要检修？", "{s}的维护间隔是多少？"),
        ),
        Attribute(
            ("矿物油", "石墨脂", "硅脂", "蓖麻油", "锂基脂", "二硫化钼喷剂"),
            ("{s}只能用{v}润滑。", "{s}采用{v}润滑。", "{s}的轴承要加{v}。"),
            ("它只能使用{v}，不可用其他代替。", "其轴承使用{v}。"),
            ("{s}应该用什么润滑？", "{s}要加哪种润滑剂？", "{s}的轴承用什么油脂？"),
        ),
        Attribute(
            ("东大厅", "北廊", "地下室", "屋顶平台", "装卸区", "老锅炉房", "临河副楼"),
            ("{s}安装在{v}。", "{s}位于{v}。", "{s}放在{v}里。"),
            ("它去年搬到了{v}。",),
            ("{s}在哪里？", "{s}装在厂区的什么位置？", "到哪儿能找到{s}？"),
        ),
        Attribute(
            ("E14", "E27", "E39", "E52", "E61", "E73", "E88", "E95"),
            ("{s}过热时显示{v}。", "{s}过热的故障代码是{v}。", "{s}温度太高会报{v}。"),
            ("它过热时会报{v}。",),
            ("{s}过热是什么代码？", "{s}温度过高时会显示什么？", "哪个代码表示{s}太热了？"),
        ),
    ),
)  # fmt: skip
_ZH_PERSON: Final = Kind(
    subjects=(
        "林晓棠", "周云帆", "许静姝", "陈砚之", "苏念慈", "韩北辰", "梁秋白", "叶知秋", "郑怀瑾",
        "唐一苇", "彭若兰", "罗锦程", "宋清和", "邵长风",
    ),
    opening=(
        "为写这本书，我们用两个晚上采访了{s}。",
        "山谷里的人都认识{s}，叫不出名字也见过面。",
        "编辑给{s}写了三封信才收到回音。",
    ),
    filler=(
        "朋友们说{s}很会讲冷笑话。",
        "本地报纸登过一张{s}在码头的照片。",
        "{s}不喜欢别人道谢。",
        "{s}写的信留下来的不多。",
        "先喝茶，然后再喝茶。",
        "屋里到处是钟，没有两个走得一样。",
    ),
    attributes=(
        Attribute(
            ("1921-1994",),
            ("{s}生于{v}年。", "{s}{v}年出生。", "户籍上写着{s}的生年是{v}年。"),
            ("这位灯塔看守人的孩子{v}年来到世上。",),
            ("{s}是哪一年出生的？", "{s}的出生年份是多少？", "{s}什么时候出生？"),
        ),
        Attribute(
            (
                "吹玻璃工", "测量员", "大提琴手", "养蜂人", "锁匠", "翻译", "造船工", "植物学家",
                "兽医",
            ),
            ("{s}的职业是{v}。", "{s}学的是{v}，也一直做这一行。", "{s}当了一辈子{v}。"),
            ("这位邻居的本行是{v}。",),
            ("{s}是做什么工作的？", "{s}的职业是什么？", "{s}靠什么谋生，从事哪一行？"),
        ),
        Attribute(
            (
                "里斯本", "塔林", "科克", "的里雅斯特", "卑尔根", "根特", "克拉科夫", "瓦伦西亚",
                "波尔图",
            ),
            ("{s}年轻时搬到了{v}。", "{s}此后大部分时间住在{v}。", "{v}成了{s}的家。"),
            ("这位旅人最后在{v}安了家。",),
            ("{s}住在哪里？", "{s}搬去了哪座城市？", "{s}的家在什么地方？"),
        ),
        Attribute(
            ("核桃", "青霉素", "贝类", "乳胶", "蜂毒", "芹菜", "猫毛", "芝麻"),
            ("{s}对{v}过敏。", "{s}一碰{v}就起疹子。", "医生提醒{s}远离{v}，因为有过严重反应。"),
            ("唯一的过敏原是{v}。",),
            ("{s}对什么过敏？", "{s}有哪种过敏？", "{s}因为过敏或起疹子要避开什么？"),
        ),
    ),
)  # fmt: skip

_ZH_LEASE: Final = Kind(
    subjects=(
        "码头路3号甲房", "磨坊巷7号房", "修道院路12号乙房", "船坞街5号房", "教堂坡21号房",
        "渡口排9号丙房",
        "车站道14号房", "玫瑰院2号房", "海景里18号房", "城门口6号丁房", "溪边街31号房",
    ),
    opening=(
        "{s}的档案由中介建立，至今完整。",
        "有关{s}的约定写在这里。",
        "这一部分只涉及{s}。",
    ),
    filler=(
        "{s}的门厅是上一位租客粉刷的。",
        "寄到{s}的信放在看门人那里。",
        "{s}的邻居希望再装一个自行车架。",
        "电表箱在楼梯后面。",
        "它下午能晒到太阳。",
        "{s}的物品清单附后。",
        "钥匙是装在信封里交接的。",
    ),
    attributes=(
        Attribute(
            ("410-1980",),
            ("{s}的租金是每月{v}元。", "租客每月为{s}支付{v}元。", "{s}以每月{v}元出租。"),
            ("它每个月要{v}元。", "其月租为{v}元。"),
            ("{s}房租多少？", "租{s}一个月要付多少钱？", "{s}每月的价格是多少？"),
        ),
        Attribute(
            ("三个星期", "六个星期", "两个月", "三个月", "十个星期", "半年"),
            ("{s}退租须提前{v}通知。", "要搬离{s}的人应提前{v}说明。", "{s}的通知期为{v}。"),
            ("它提前{v}通知即可退租。",),
            ("{s}退租要提前多久通知？", "{s}的通知期是多长？", "离开{s}之前要提前多长时间告知？"),
        ),
        Attribute(
            ("养狗", "养猫", "吸烟", "弹钢琴", "烧烤", "放鱼缸", "停摩托车"),
            ("{s}的住户守则规定不得{v}。", "在{s}里不许{v}。"),
            ("其守则写明禁止{v}。",),
            ("{s}里禁止做什么？", "{s}的守则不允许什么？", "租{s}的人不可以做什么？"),
        ),
        Attribute(
            ("燃气", "燃油", "木屑颗粒", "集中供热", "热泵", "蓄热电暖器"),
            ("{s}用{v}取暖。", "{s}的供暖来自{v}。"),
            ("它靠{v}保暖。", "其暖气使用{v}。"),
            ("{s}怎么取暖？", "{s}用的是哪种暖气？", "{s}冬天靠什么保暖？"),
        ),
    ),
)  # fmt: skip
_ZH_ROUTE: Final = Kind(
    subjects=(
        "白鹭步道", "盐沼环线", "山脊小径", "铜矿古道", "僧人路", "峡谷环线", "灯塔步道", "赶牛路",
        "泥炭线", "瀑布线", "烽火台环线", "采石场阶梯",
    ),
    opening=(
        "{s}是人们愿意再走一次的路线。",
        "我们接下来推荐{s}。",
        "有两位读者来信谈到{s}。",
    ),
    filler=(
        "{s}有些路段雨后泥泞。",
        "{s}沿途有长椅，大多看得到风景。",
        "{s}的路标由志愿者更新过。",
        "狗必须拴绳。",
        "它在傍晚的光线里很美。",
        "在{s}上可能一小时遇不到一个人。",
        "其中段穿过一片树林。",
    ),
    attributes=(
        Attribute(
            ("4-29",),
            ("{s}长{v}公里。", "{s}从头到尾有{v}公里。", "走{s}要准备好{v}公里的脚程。"),
            ("它的长度是{v}公里。", "其全程{v}公里。"),
            ("{s}有多长？", "走完{s}是多少距离？", "{s}多少公里？"),
        ),
        Attribute(
            ("小教堂", "旧窑", "渡船码头", "羊圈", "石桥", "护林人小屋", "信号房"),
            ("{s}从{v}开始。", "在{v}可以走上{s}。", "{s}的第一块路标在{v}旁边。"),
            ("它的起点是{v}。", "其出发点在{v}。"),
            ("{s}从哪里开始？", "{s}的起点在哪儿？", "走{s}要从什么地方出发？"),
        ),
        Attribute(
            (
                "松动的碎石", "突然涨潮", "掉落的树枝", "毒蛇", "草地上的公牛", "湿滑的木板",
                "平日的射击",
            ),
            ("走{s}要当心{v}。", "{s}唯一的危险是{v}。", "有人在{s}因{v}受伤。"),
            ("它只有一处危险：{v}。",),
            ("走{s}要注意什么？", "{s}有什么危险？", "{s}上存在哪种安全隐患？"),
        ),
        Attribute(
            ("14路车", "27路车", "33路车", "48路车", "52路车", "61路车", "75路车"),
            ("去{s}请乘{v}。", "{v}停靠{s}。", "到{s}的公交是{v}。"),
            ("它可以坐{v}到达。",),
            ("怎么坐公交去{s}？", "哪路车到{s}？", "去{s}要乘什么车？"),
        ),
    ),
)  # fmt: skip

CHINESE: Final = Language(
    kinds=(_ZH_PLACE, _ZH_DEVICE, _ZH_PERSON, _ZH_LEASE, _ZH_ROUTE),
    general=(
        "调查期间的天气比往年同期温和。",
        "所有数字在付印前都经过第二人核对。",
        "书中的地图没有按比例绘制。",
        "作者感谢借出文件而不求回报的人们。",
        "以下有些内容是私下说的，已经略去。",
        "这些笔记的完整版存放在档案室。",
        "各种来源不一致时，以较晚的为准。",
        "条目的先后次序没有特别的意义。",
        "希望以后还能出第二卷。",
        "文中的看法属于提出它们的人。",
        "全书的用字已经统一。",
        "初版的脚注已经并入正文。",
    ),
    space="",
    instruction=(
        "请根据下面的文章回答问题，文章里没有的就说没有。",
        "下面给你一段文字，请仔细阅读并用一句话回答。",
        "只能依据以下内容回答，不要推测。",
    ),
    markers=("文章：", "问题："),
    small_talk=(
        (
            "下雨的周末有什么推荐的吗？",
            "一本厚书配一锅慢炖的汤就很好。如果想出门，雨天的室内集市也不错，上午人一般不多。",
        ),
        (
            "窗台上的罗勒怎么才能养活？",
            "从盆底浇水，别放在风口，经常掐掉顶上的叶子。店里买来的大多太挤，可以分成两盆。",
        ),
        (
            "简单说说面包为什么会变硬。",
            "淀粉会慢慢结晶，把水分挤出去，放冰箱里最快。用纸包好放在室温下，或者切片冷冻。",
        ),
        (
            "给生日贺卡写一句话。",
            "又绕太阳走了一圈，你还是那么从容。祝你这一天有蛋糕也有喜欢的人。",
        ),
        (
            "怎样记住各种树的名字？",
            "先认你家街上的五种。冬天看树皮和芽，春天再看叶子。小本子比手机软件管用。",
        ),
        ("来一个绕口令。", "四是四，十是十，十四是十四，四十是四十。连说三遍，不要停。"),
        (
            "猫为什么喜欢把东西推下桌子？",
            "它们想试试什么会动，也喜欢那声响，最要紧的是能把人引过来。没人陪玩的猫做得更多。",
        ),
        (
            "喝汤时另一只手拿着面包失礼吗？",
            "在家当然不。正式场合吃一口会放下面包，不过主人多半不介意。",
        ),
    ),
    lead=(
        "我先把{s}的一些情况记在这里，以后要用。",
        "趁还记得，跟你说说{s}。",
        "这是我关于{s}的笔记。",
    ),
    told=(
        "好的，已经记下了，还有的话随时告诉我。",
        "明白了，接下来的对话里我会记住。",
        "收到。以后需要我整理成表格吗？",
    ),
)

LANGUAGES: Final = {"en": ENGLISH, "zh": CHINESE}
