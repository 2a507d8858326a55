package demo

import (
	"regexp"
	"testing"
)

func FuzzParseAmount(f *testing.F) {
	for _, s := range []string{"0", "1", "12.50", "007", "1.5", "1.", ".50", "-1", "+1", "1e3", "999999999.99", "1000000000", "0.01", "1,50", "١"} {
		f.Add(s)
	}
	form := regexp.MustCompile(amountPattern)
	f.Fuzz(func(t *testing.T, s string) {
		cents, err := parseAmount(s)
		isZero := s == "0" || s == "0.00"
		if wanted := form.MatchString(s) && !isZero; wanted != (err == nil) {
			t.Fatalf("parseAmount(%q) = %d, %v; the pattern that the tool states says %v", s, cents, err, wanted)
		}
		if err != nil {
			return
		}
		if again, err := parseAmount(formatCents(cents)); err != nil || again != cents {
			t.Fatalf("%q is %d cents, but %q is %d cents, %v", s, cents, formatCents(cents), again, err)
		}
	})
}
