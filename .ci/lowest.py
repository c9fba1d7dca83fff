"""Prints the lowest versions that setup.cfg declares, as a file of constraints for pip."""

import configparser
import re

config = configparser.ConfigParser()
config.read("setup.cfg")
declared = config["options"]["install_requires"] + config["options.extras_require"]["test"]
for requirement in filter(None, declared.split("\n")):
    name, least = re.match(r"([\w-]+)(?:\[\w+\])?(?:>=([\d.]+))?", requirement).groups()
    if least:
        print(f"{name}=={least}")
