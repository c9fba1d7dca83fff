"""The chapters of a report, in order: the questions that the figures of all papers answer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """A chapter of the report.

    Attributes:
        heading: its heading.
        text: the question that its figures answer.
        rank: chapters of a lower rank come first.
    """

    heading: str
    text: str
    rank: int = 100


STRUCTURE = Chapter(
    "Representation structure",
    "How similar are the representations of a model's layers, and those of two models? Section "
    "4 of Raghu et al. finds ViTs uniform through their depth and ResNets divided into stages.",
    rank=1,
)
LOCALITY = Chapter(
    "Local and global information",
    "How far does a layer look? Section 5 of Raghu et al. finds heads of every reach in the "
    "lowest ViT layers, where ResNets are local by construction.",
    rank=2,
)
EMBEDDINGS = Chapter(
    "Patches and positions",
    "What does the first layer see of a patch, and how does it know where the patch lies? "
    "Section 4.5 of Dosovitskiy et al. finds filters like the waves of a picture's fine "
    "structure, and positions that have learned the rows and columns of the image.",
    rank=3,
)
SKIPS = Chapter(
    "Skip connections",
    "What passes through the skips, and what through the branches? Section 6 of Raghu et "
    "al. finds the skips of ViTs more influential than those of ResNets.",
    rank=4,
)
LOCALIZATION = Chapter(
    "Spatial information",
    "Does a token still know its place in the image after the last block? Section 7 of Raghu "
    "et al. finds that those of ViTs do, those trained with a CLS token most of all.",
    rank=5,
)
PROBES = Chapter(
    "Linear probes",
    "How much of the label can be read off each layer by a linear map that is fitted on a few "
    "images of each class?",
    rank=6,
)
CLASSES = Chapter(
    "Neighbours and clusters",
    "Do images of a class lie close together in the features as they are, with nothing fitted? "
    "Sections 5.2 and 6.1 of Walmer et al. find this to come late in supervised ViTs. Grey "
    "lines are baselines: the same model before any training, and noise in its place.",
    rank=7,
)
OBJECTS = Chapter(
    "Objects and parts",
    "Does attention find the object in an image, and do the tokens under a mask tell what it "
    "is? Sections 4.4 and 5.3 of Walmer et al. find objects early in every ViT. Grey lines are "
    "baselines: the same model before any training, and noise in its place.",
    rank=8,
)
TASKS = Chapter(
    "Videos, keypoints and retrieval",
    "Do features find the same thing again, in the next frame or in another image? Section 6 "
    "of Walmer et al. finds layers before the last to be best where places count. Grey lines "
    "are baselines: the same model before any training, and noise in its place.",
    rank=9,
)
SCALE = Chapter(
    "Data and transfer",
    "What does a model need more data for, and what does fine-tuning change? Section 8 and "
    "appendix G of Raghu et al. find that lower layers are learned from little data and keep "
    "what they have learned.",
    rank=10,
)
CAUSES = Chapter(
    "Causes",
    "Which heads, blocks and tokens are a model's answers made of? They are removed one after "
    "another while the model runs, and what is lost is told: what looks important need not be.",
    rank=11,
)
