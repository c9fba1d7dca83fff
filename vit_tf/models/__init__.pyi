from .beit import BEiT as BEiT
from .bit import BiT as BiT
from .clip import CLIPViT as CLIPViT
from .mixer import Mixer as Mixer
from .siglip import SigLIPViT as SigLIPViT
from .vit import ViT as ViT
