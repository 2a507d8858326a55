package detect

// A phone number has at most 15 digits (ITU-T E.164, section 6). Numbers with fewer than minPhoneDigits digits are not
// searched for.
const minPhoneDigits, maxPhoneDigits = 8, 15

// countryCodes lists the assigned country codes of two and three digits, as ranges (ITU-T E.164, list of assigned
// codes). It does not contain the codes 1 and 7, which have one digit.
var countryCodes = [][2]int{
	{20, 20}, {27, 27}, {30, 34}, {36, 36}, {39, 41}, {43, 49}, {51, 58}, {60, 66}, {81, 82}, {84, 84}, {86, 86}, {90, 95}, {98, 98},
	{211, 213}, {216, 216}, {218, 218}, {220, 258}, {260, 269}, {290, 291}, {297, 299}, {350, 359}, {370, 378}, {380, 383},
	{385, 387}, {389, 389}, {420, 421}, {423, 423}, {500, 509}, {590, 599}, {670, 670}, {672, 683}, {685, 692}, {800, 800},
	{808, 808}, {850, 850}, {852, 853}, {855, 856}, {870, 870}, {878, 878}, {880, 883}, {886, 886}, {888, 888}, {960, 968},
	{970, 977}, {979, 979}, {992, 996}, {998, 998},
}

// findPhones finds phone numbers with `+` and a country code. Between two digits, there may be up to three separators,
// which are spaces, `-`, `.` and parentheses.
func findPhones(text string) (found []span) {
	for i := 0; i < len(text); i++ {
		if text[i] != '+' || isInWord(text, i-1) || at(text, i-1) == '+' {
			continue
		}
		if end := phoneEnd(text, i+1); end > 0 {
			found = append(found, span{i, end})
			i = end - 1
		}
	}
	return found
}

// phoneEnd returns the end of the phone number whose digits begin at an offset, or 0 if there is none.
func phoneEnd(text string, i int) int {
	digits, end := make([]byte, 0, maxPhoneDigits), 0
	for i < len(text) {
		c := text[i]
		if isDigit(c) {
			if len(digits) == maxPhoneDigits {
				return 0
			}
			digits = append(digits, c)
			i++
			end = i
			continue
		}
		skip := phoneSeparator(text, i)
		if skip == 0 || len(digits) == 0 || len(digits) == 1 && digits[0] != '1' && digits[0] != '7' { // a country code of one digit is 1 or 7
			break
		}
		i += skip
	}
	if isInWord(text, end) || !isPhone(digits) {
		return 0
	}
	return end
}

// phoneSeparator returns the length in bytes of the separator between two digits, or 0 if there is none.
func phoneSeparator(text string, i int) int {
	start := i
	for i < len(text) && i-start < 3 {
		switch text[i] {
		case ' ', '-', '.', '(', ')':
			i++
		default:
			if isDigit(text[i]) {
				return i - start
			}
			return 0
		}
	}
	if isDigit(at(text, i)) {
		return i - start
	}
	return 0
}

func isPhone(digits []byte) bool {
	if len(digits) < minPhoneDigits {
		return false
	}
	switch digits[0] {
	case '0':
		return false
	case '1': // in the North American Numbering Plan, the area code and the exchange code begin with 2 to 9
		return len(digits) == 11 && digits[1] > '1' && digits[4] > '1'
	case '7':
		return len(digits) == 11
	}
	two := int(digits[0]-'0')*10 + int(digits[1]-'0')
	three := two*10 + int(digits[2]-'0')
	for _, r := range countryCodes {
		if r[0] <= two && two <= r[1] || r[0] <= three && three <= r[1] {
			return true
		}
	}
	return false
}
