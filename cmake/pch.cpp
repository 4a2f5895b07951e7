// Source of a precompiled header that other targets reuse.
