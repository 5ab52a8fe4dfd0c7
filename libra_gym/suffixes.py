"""Kinds of photos and videos, by the endings of their names."""

from __future__ import annotations

PHOTO_SUFFIXES = (
    ".avif",
    ".bmp",
    ".gif",
    ".jfif",
    ".jpe",
    ".jpeg",
    ".jpg",
    ".jp2",
    ".pgm",
    ".png",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)
VIDEO_SUFFIXES = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv")
UNREAD_SUFFIXES = (
    ".3fr",
    ".arw",
    ".cr2",
    ".cr3",
    ".dcr",
    ".dng",
    ".erf",
    ".heic",
    ".heif",
    ".hif",
    ".jxl",
    ".kdc",
    ".nef",
    ".orf",
    ".pef",
    ".raf",
    ".rw2",
    ".srw",
)
"""Photos of phones and cameras that OpenCV cannot decode; of some raw files it would take a small preview for all."""
