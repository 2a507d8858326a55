package detect

// The number of a payment card has 12 to 19 digits (ISO/IEC 7812-1).
const minCardDigits, maxCardDigits = 12, 19

// A cardScheme describes card numbers whose prefix is in the range from low to high, and whose length is in the given
// range. low and high have the same number of digits.
type cardScheme struct {
	low, high            string
	minDigits, maxDigits int
}

// cardSchemes lists the ranges of numbers that the card schemes issue.
var cardSchemes = []cardScheme{
	{"4", "4", 13, 13}, {"4", "4", 16, 16}, {"4", "4", 19, 19}, // Visa
	{"51", "55", 16, 16}, {"2221", "2720", 16, 16}, // Mastercard
	{"34", "34", 15, 15}, {"37", "37", 15, 15}, // American Express
	{"300", "305", 14, 14}, {"36", "36", 14, 14}, {"38", "39", 14, 14}, // Diners Club
	{"6011", "6011", 16, 19}, {"644", "659", 16, 19}, // Discover
	{"3528", "3589", 16, 19},                     // JCB
	{"62", "62", 16, 19},                         // UnionPay
	{"2200", "2204", 16, 19},                     // Mir
	{"508", "508", 16, 16}, {"81", "82", 16, 16}, // RuPay
	{"5018", "5018", 12, 19}, {"5020", "5020", 12, 19}, {"5038", "5038", 12, 19}, // Maestro
	{"5893", "5893", 12, 19}, {"6304", "6304", 12, 19}, {"6759", "6763", 12, 19},
}

func (s cardScheme) issues(digits []byte) bool {
	if len(digits) < s.minDigits || len(digits) > s.maxDigits {
		return false
	}
	prefix := string(digits[:len(s.low)])
	return s.low <= prefix && prefix <= s.high
}

// findCards finds card numbers. A card number consists of digits, or of groups of digits that are separated by one
// space, `-` or `.`.
func findCards(text string) (found []span) {
	for i := 0; i < len(text); {
		if !isDigit(text[i]) {
			i++
			continue
		}
		groups := digitGroups(text, i)
		last := groups[len(groups)-1]
		if isDecimal := len(groups) == 2 && at(text, groups[0].end) == '.'; !isDecimal {
			found = append(found, cardsIn(text, wholeGroups(text, groups))...)
		}
		i = last.end
	}
	return found
}

// wholeGroups omits the first group, the last group or both if they are parts of words. It also omits the first group
// if that group is the fraction of a decimal number.
func wholeGroups(text string, groups []span) []span {
	first, last := groups[0].start, groups[len(groups)-1].end
	if isInWord(text, first-1) || at(text, first-1) == '.' && isDigit(at(text, first-2)) {
		groups = groups[1:]
	}
	if isInWord(text, last) && len(groups) > 0 {
		groups = groups[:len(groups)-1]
	}
	return groups
}

// digitGroups returns the groups of digits that begin at an offset. All groups are separated by the same character.
func digitGroups(text string, i int) []span {
	groups, separator := make([]span, 0, 4), byte(0)
	for {
		end := skipDigits(text, i, len(text))
		groups = append(groups, span{i, end})
		c := at(text, end)
		if c != ' ' && c != '-' && c != '.' || separator != 0 && c != separator || !isDigit(at(text, end+1)) {
			return groups
		}
		separator, i = c, end+1
	}
}

// If a card number consists of several groups, its first group has at least minFirstGroup digits, and each group has at
// most maxGroup digits.
const minFirstGroup, maxGroup = 4, 6

// cardsIn returns the card numbers that consist of one or more consecutive groups.
func cardsIn(text string, groups []span) (found []span) {
	for first := 0; first < len(groups); first++ {
		var digits []byte
		for last := first; last < len(groups); last++ {
			g := groups[last]
			if len(digits)+g.end-g.start > maxCardDigits || last > first && !mayFollow(groups[first], g) {
				break
			}
			digits = append(digits, text[g.start:g.end]...)
			if isCard(digits) {
				found = append(found, span{groups[first].start, g.end})
				first = last
				break
			}
		}
	}
	return found
}

// mayFollow reports whether the lengths of two groups of digits are usual for the first group and a later group of the
// same card number.
func mayFollow(first, group span) bool {
	size := first.end - first.start
	return size >= minFirstGroup && size <= maxGroup && group.end-group.start <= maxGroup
}

func isCard(digits []byte) bool {
	if len(digits) < minCardDigits || !passesLuhn(digits) {
		return false
	}
	for _, scheme := range cardSchemes {
		if scheme.issues(digits) {
			return true
		}
	}
	return false
}

// passesLuhn reports whether the check digit, which is the last digit, is correct (ISO/IEC 7812-1, annex B).
func passesLuhn(digits []byte) bool {
	sum := 0
	for i := range digits {
		d := int(digits[len(digits)-1-i] - '0')
		if i%2 == 1 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	return sum%10 == 0
}
