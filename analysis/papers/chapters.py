"""The chapters of a report, in order: the questions that their figures answer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """A chapter of the report: the question that its figures answer, and what a paper reports."""

    heading: str
    text: str
    rank: int = 100  # chapters come in the order of their rank, those without a rank last


STRUCTURE = Chapter(
    "Representation structure",
    "How similar are the layers of one model to each other, and to the layers of another model? "
    "Raghu et al. (section 4) find a uniform similarity structure in ViTs and distinct stages in "
    "ResNets.",
    rank=1,
)
LOCALITY = Chapter(
    "Local and global information",
    "How local or global is each layer? Raghu et al. (section 5) find local and global attention "
    "heads in the lowest ViT layers; the lowest ResNet layers are local by construction.",
    rank=2,
)
EMBEDDINGS = Chapter(
    "Patch and position embeddings",
    "What do the patch and position embeddings learn? Dosovitskiy et al. (section 4.5) find that "
    "the filters resemble a low-dimensional basis for the fine structure of a patch. They also "
    "find that the similarity of position embeddings shows the rows and columns of the image.",
    rank=3,
)
SKIPS = Chapter(
    "Skip connections",
    "How much information does each sublayer pass on through its skip connection, and how much "
    "through its branch? Raghu et al. (section 6) find skip connections more influential in ViTs "
    "than in ResNets.",
    rank=4,
)
LOCALIZATION = Chapter(
    "Spatial information",
    "Do tokens stay similar to the image patch at their own location up to the last block? Raghu "
    "et al. (section 7) find that ViT tokens do, most clearly in models trained with a CLS token.",
    rank=5,
)
PROBES = Chapter(
    "Linear probes",
    "How linearly separable are the classes in each layer? A probe is fitted on a few images of "
    "each class.",
    rank=6,
)
CLASSES = Chapter(
    "Neighbours and clusters",
    "Are images of a class close together in feature space? Clusters and nearest neighbours show "
    "this without a fitted classifier. Walmer et al. (sections 5.2 and 6.1) find that classes form "
    "clusters late in supervised ViTs. Grey lines are baselines: the untrained model, and noise "
    "instead of features.",
    rank=7,
)
OBJECTS = Chapter(
    "Objects and parts",
    "Does attention align with the object in the image, and do the tokens within its mask encode "
    "its class? Walmer et al. (sections 4.4 and 5.3) find objects early in every ViT. Grey lines "
    "are baselines: the untrained model, and noise instead of features.",
    rank=8,
)
TASKS = Chapter(
    "Videos, keypoints and retrieval",
    "Do features match the same content in the next frame or in another image? Walmer et al. "
    "(section 6) find that layers before the last are best for tasks that depend on position. Grey "
    "lines are baselines: the untrained model, and noise instead of features.",
    rank=9,
)
SCALE = Chapter(
    "Data and transfer",
    "Which layers need more training data, and which change in fine-tuning? Raghu et al. (section "
    "8 and appendix G) find that lower layers are learned from little data and change little in "
    "fine-tuning.",
    rank=10,
)
CAUSES = Chapter(
    "Causes",
    "Which heads, blocks and tokens does the output depend on? Each of them is ablated in turn "
    "during the forward pass, and the loss in accuracy is measured. A part that appears "
    "important in other measurements may turn out to be dispensable.",
    rank=11,
)
