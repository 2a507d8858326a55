package detect

// ssnLength is the length of a number with separators, for example 123-45-6789.
const ssnLength = 11

// findSSNs finds US social security numbers of the form AAA-GG-SSSS, with `-` or spaces, in the ranges that the Social
// Security Administration issues.
func findSSNs(text string) (found []span) {
	for i := 0; i+ssnLength <= len(text); i++ {
		if !isDigit(text[i]) || isInWord(text, i-1) || at(text, i-1) == '-' || at(text, i-1) == '.' {
			continue
		}
		if end := i + ssnLength; isSSN(text[i:end]) && !isInWord(text, end) && at(text, end) != '-' {
			found = append(found, span{i, end})
			i = end - 1
		}
	}
	return found
}

func isSSN(s string) bool {
	for i := range len(s) {
		if separates := i == 3 || i == 6; separates && (s[i] != '-' && s[i] != ' ' || s[i] != s[3]) || !separates && !isDigit(s[i]) {
			return false
		}
	}
	area, group, serial := s[:3], s[4:6], s[7:]
	if area == "000" || area == "666" || area[0] == '9' || group == "00" || serial == "0000" {
		return false
	}
	number := area + group + serial
	return number != "078051120" && number != "219099999" // printed in advertisements and never valid
}
