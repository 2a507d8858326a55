package detect

import "strings"

// ibanLengths maps each country to the length of its IBANs (ISO 13616, the registry of SWIFT).
var ibanLengths = map[string]int{
	"AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29, "BY": 28,
	"CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
	"FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HN": 28, "HR": 21, "HU": 28,
	"IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20,
	"LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28,
	"NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24,
	"SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26,
	"UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}

// findIBANs finds IBANs, including IBANs in lower case and IBANs with one space or `-` between groups.
func findIBANs(text string) (found []span) {
	for i := 0; i+15 <= len(text); i++ {
		if !isLetter(text[i]) || !isLetter(text[i+1]) || isInWord(text, i-1) {
			continue
		}
		if end := ibanEnd(text, i); end > 0 {
			found = append(found, span{i, end})
			i = end - 1
		}
	}
	return found
}

// ibanEnd returns the end of the IBAN that begins at an offset, or 0 if there is none.
func ibanEnd(text string, start int) int {
	length := ibanLengths[strings.ToUpper(text[start:start+2])]
	if length == 0 {
		return 0
	}
	number, i := make([]byte, 0, length), start
	for len(number) < length {
		c := at(text, i)
		if separates := c == ' ' || c == '-'; separates && len(number) >= 4 && isAlphanumeric(at(text, i+1)) {
			i++
			continue
		}
		if !isAlphanumeric(c) || (len(number) == 2 || len(number) == 3) && !isDigit(c) {
			return 0
		}
		if isLetter(c) {
			c &^= 0x20
		}
		number = append(number, c)
		i++
	}
	if isInWord(text, i) || !passesMod97(number) {
		return 0
	}
	return i
}

// passesMod97 reports whether the check digits are correct (ISO 7064, MOD 97-10).
func passesMod97(number []byte) bool {
	rest := 0
	for i := range number {
		c := number[(i+4)%len(number)]
		if isDigit(c) {
			rest = (rest*10 + int(c-'0')) % 97
		} else {
			rest = (rest*100 + int(c-'A') + 10) % 97
		}
	}
	return rest == 1
}
