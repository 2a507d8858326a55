package canonical

// Number writes a JSON number so that two texts are equal where their exact decimal
// values are, whatever their size: an integer that does not end in 0, the letter e
// and the decimal exponent; "0e0" for zero. Text that is no number is an error.
func Number(text string) (string, error) {
	out, err := appendNumber(nil, text)
	return string(out), err
}
