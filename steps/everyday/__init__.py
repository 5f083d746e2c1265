"""Part 100 to 119: problems that people have beside square ones: grouped heads, decoding, masks."""
