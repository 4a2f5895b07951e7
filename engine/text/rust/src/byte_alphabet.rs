//! Spelling of bytes in byte-level vocabularies.

/// GPT-2's alphabet: printable Latin-1 characters map to themselves, the other 68 bytes to U+0100 and up.
pub fn byte_alphabet() -> Vec<Option<u8>> {
    let mut alphabet = vec![None; 0x144];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            alphabet[byte as usize] = Some(byte);
        } else {
            alphabet[next] = Some(byte);
            next += 1;
        }
    }
    alphabet
}
