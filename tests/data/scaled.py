"""The figures of scaled.h, by Pillow: python3 scaled.py > scaled.h

With a Pillow before 13, which takes lines first; later ones take columns first in some pictures, which may differ by 1.
What torchvision's Resize(size) and CenterCrop(size) do with a picture of Pillow: the shorter side to
`size` pixels by the bilinear filter, then the middle. Pixels are those of test_images.c.
"""
from PIL import Image, __version__

PICTURES = [(40, 30, 9), (20, 27, 9), (5, 4, 9), (9, 9, 9), (30, 9, 9), (7, 39, 6)]  # width, height, size


def main():
    print(f"/* Written by scaled.py with Pillow {__version__}. */")
    print("static const struct {\n    int width, height, size;\n    uint8_t pixel[243];\n} scaled[] = {")
    for width, height, size in PICTURES:
        data = bytes((i * i * 31 // 7 + i * 3) & 255 for i in range(3 * width * height))
        short = min(width, height)
        wide, tall = int(size * width / short), int(size * height / short)
        left, top = int(round((wide - size) / 2)), int(round((tall - size) / 2))
        picture = Image.frombytes("RGB", (width, height), data).resize((wide, tall), Image.BILINEAR)
        pixel = picture.crop((left, top, left + size, top + size)).tobytes()
        print(f"    {{{width}, {height}, {size}, {{{', '.join(map(str, pixel))}}}}},")
    print("};")


main()
