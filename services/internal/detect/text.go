package detect

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isAlphanumeric(c byte) bool { return isDigit(c) || isLetter(c) }

// at returns the byte at offset i, or 0 if i is outside the text.
func at(text string, i int) byte {
	if i < 0 || i >= len(text) {
		return 0
	}
	return text[i]
}

// isInWord reports whether the byte at an offset is part of a word or a number.
func isInWord(text string, i int) bool {
	c := at(text, i)
	return isAlphanumeric(c) || c == '_'
}

// skipDigits returns the offset of the first byte at or after i that is not a digit, but at most i+limit.
func skipDigits(text string, i, limit int) int {
	end := min(len(text), i+limit)
	for i < end && isDigit(text[i]) {
		i++
	}
	return i
}
