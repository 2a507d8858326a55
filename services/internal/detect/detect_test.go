package detect_test

import (
	"errors"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/detect"
)

// floors contains the minimum precision and recall of each detector on the test data, in percent.
var floors = map[string]struct{ precision, recall float64 }{
	"secrets": {95, 97}, "card": {100, 100}, "iban": {100, 100}, "email": {100, 100}, "phone": {95, 97}, "us_ssn": {100, 100},
}

// A sample is a line of the test data. part is the part that the detector must find. It is empty if the text contains
// no hit.
type sample struct{ detector, origin, text, part string }

var escape = regexp.MustCompile(`\\u[0-9a-f]{4}`)

// readSamples reads a file of test data.
func readSamples(t testing.TB, file string) (out []sample) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.ReplaceAll(string(raw), "¦", "")) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		text := escape.ReplaceAllStringFunc(fields[len(fields)-1], func(code string) string {
			r, err := strconv.ParseUint(code[2:], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return string(rune(r))
		})
		s := sample{detector: fields[0], text: text}
		if before, rest, ok := strings.Cut(text, "⟦"); ok {
			part, after, _ := strings.Cut(rest, "⟧")
			s.origin, s.part, s.text = fields[1], part, before+part+after
		}
		out = append(out, s)
	}
	return out
}

func find(t testing.TB, text string, names ...string) []detect.Hit {
	t.Helper()
	set, err := detect.NewSet(names...)
	if err != nil {
		t.Fatal(err)
	}
	hits, err := set.NewSearch(len(text)).Find(text)
	if err != nil {
		t.Fatal(err)
	}
	return hits
}

// covers reports whether a hit covers a part of a text.
func covers(hits []detect.Hit, text, part string) bool {
	at := strings.Index(text, part)
	for _, h := range hits {
		if h.Start <= at && at+len(part) <= h.End {
			return true
		}
	}
	return false
}

// TestFind_HasThePrecisionAndRecallOfTheFloors measures each detector separately on the test data.
func TestFind_HasThePrecisionAndRecallOfTheFloors(t *testing.T) {
	t.Parallel()
	found, all, wrong := make(map[string]int), make(map[string]int), make(map[string]int)
	hits, misses := readSamples(t, "testdata/hits.txt"), readSamples(t, "testdata/misses.txt")
	for _, s := range hits {
		if all[s.detector]++; covers(find(t, s.text, s.detector), s.text, s.part) {
			found[s.detector]++
		} else {
			t.Logf("%s (%s) is not found: %q in %q", s.detector, s.origin, s.part, s.text)
		}
	}
	for _, s := range misses {
		if got := find(t, s.text, s.detector); len(got) > 0 {
			wrong[s.detector]++
			t.Logf("%s finds %q in %q", s.detector, s.text[got[0].Start:got[0].End], s.text)
		}
	}
	if len(hits) < 300 || len(misses) < 300 {
		t.Errorf("there are %d hits and %d misses", len(hits), len(misses))
	}
	for _, name := range detect.Names() {
		recall := 100 * float64(found[name]) / float64(all[name])
		precision := 100 * float64(found[name]) / float64(found[name]+wrong[name])
		t.Logf("%-8s precision %5.1f %%, recall %5.1f %% of %d", name, precision, recall, all[name])
		if floor, ok := floors[name]; !ok || !(precision >= floor.precision) || !(recall >= floor.recall) {
			t.Errorf("%s is below its floors %+v", name, floor)
		}
	}
}

// TestFind_WindowsLoseNoHit puts each sample into the middle of a long text. The detector still finds the same part,
// although the rules read only parts of the text.
func TestFind_WindowsLoseNoHit(t *testing.T) {
	t.Parallel()
	around := strings.Repeat("lorem ipsum dolor sit amet\n", 400)
	for _, s := range readSamples(t, "testdata/hits.txt") {
		if alone := find(t, s.text+"\n", detect.Names()...); !covers(alone, s.text, s.part) {
			continue // the test of the floors counts it
		}
		text := around + s.text + "\n" + around
		if got := find(t, text, detect.Names()...); !covers(got, text, s.part) {
			t.Errorf("%s (%s) is not found in a long text: %q", s.detector, s.origin, s.text)
		}
	}
}

func TestFind_SecretIsFoundWhole(t *testing.T) {
	t.Parallel()
	value := strings.Repeat("q7Zt9aB3dE5fG0hJ", 2000)
	text := `api_key = "` + value + `" and more`
	hits := find(t, text, "secrets")
	if len(hits) != 1 || text[hits[0].Start:hits[0].End] != value {
		t.Errorf("%v", hits)
	}
}

func TestFind_OverlappingHitsAreMerged(t *testing.T) {
	t.Parallel()
	text := "mail 4111111111111111@example.com"
	hits := find(t, text, detect.Names()...)
	if len(hits) != 1 || text[hits[0].Start:hits[0].End] != "4111111111111111@example.com" || hits[0].Detector != "card" {
		t.Errorf("%+v", hits)
	}
}

func TestFindMember_ReadsTheNameOfTheMember(t *testing.T) {
	t.Parallel()
	set, err := detect.NewSet("secrets")
	if err != nil {
		t.Fatal(err)
	}
	value := "wJalr" + "XUtnFEMI9K7MDENGbPxRfiCYzq4" + "hW"
	for name, want := range map[string]int{"aws_secret_access_key": 1, "clientSecret": 1, "description": 0, "": 0} {
		hits, err := set.NewSearch(len(value)).FindMember(name, value)
		if err != nil || len(hits) != want || want == 1 && value[hits[0].Start:hits[0].End] != value {
			t.Errorf("%s: %v, %v", name, hits, err)
		}
	}
}

func TestFind_WorkIsBounded(t *testing.T) {
	t.Parallel()
	set, err := detect.NewSet(detect.Names()...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := set.NewSearch(detect.MaxText).Find(strings.Repeat("x", detect.MaxText+1)); !errors.Is(err, detect.ErrTooLarge) {
		t.Errorf("a text above the limit: %v", err)
	}
	var hostile strings.Builder // every keyword, again and again
	raw, err := os.ReadFile("rules/gitleaks.toml")
	if err != nil {
		t.Fatal(err)
	}
	for hostile.Len() < 4<<20 {
		hostile.Write(raw)
	}
	if _, err := set.NewSearch(hostile.Len()).Find(hostile.String()); !errors.Is(err, detect.ErrTooLarge) {
		t.Errorf("a text with too many keywords: %v", err)
	}
	if _, err := set.NewSearch(1000).Find(string(raw)); !errors.Is(err, detect.ErrTooLarge) {
		t.Errorf("more work than the size of the message permits: %v", err)
	}
	search := set.NewSearch(len(raw))
	for range 100 { // the limit is for all texts together
		if _, err = search.Find(string(raw)); err != nil {
			break
		}
	}
	if !errors.Is(err, detect.ErrTooLarge) {
		t.Errorf("many texts: %v", err)
	}
}

func TestNewSet_RefusesUnknownNames(t *testing.T) {
	t.Parallel()
	if _, err := detect.NewSet("email", "mail"); err == nil || !strings.Contains(err.Error(), `no detector "mail"`) {
		t.Errorf("%v", err)
	}
	var none detect.Set
	if hits, err := none.NewSearch(1).Find("a@example.com"); !none.IsEmpty() || hits != nil || err != nil {
		t.Errorf("the zero set finds %v, %v", hits, err)
	}
}

// FuzzFind checks that hits are inside the text, are sorted, do not overlap and do not begin or end inside a character.
func FuzzFind(f *testing.F) {
	for _, s := range readSamples(f, "testdata/hits.txt") {
		f.Add(s.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		last := 0
		text = strings.ToValidUTF8(text, "?")
		for _, h := range find(t, text, detect.Names()...) {
			if h.Start < last || h.End <= h.Start || h.End > len(text) || strings.ToValidUTF8(text[h.Start:h.End], "") != text[h.Start:h.End] {
				t.Fatalf("%+v after %d in %q", h, last, text)
			}
			last = h.End
		}
	})
}

// BenchmarkFind measures all detectors on a text of 64 KiB.
func BenchmarkFind(b *testing.B) {
	prose := strings.Repeat("The quick brown fox jumps over the lazy dog, and reads page 42 of it.\n", 1000)[:64<<10]
	raw, err := os.ReadFile("secrets.go")
	if err != nil {
		b.Fatal(err)
	}
	code := strings.Repeat(string(raw), 20)[:64<<10]
	dense := strings.Repeat(`{"email":"alice@example.com","card":"4111 1111 1111 1111","token":"x"}`+"\n", 1000)[:64<<10]
	set, err := detect.NewSet(detect.Names()...)
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string]string{"prose": prose, "code": code, "hits": dense} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := set.NewSearch(len(text)).Find(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Text that is not valid JSON, and JSON inside a JSON string, contain escapes. The detectors find secrets in spite of
// these escapes.
func TestFind_EscapesOfJSONHideNothing(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`a\u0040example.com`:                        `a\u0040example.com`,
		`{"a":1} {"b":"x a\u0040example.com\n"}`:    `a\u0040example.com`,
		`"{\"b\":\"a\\\\u0040example\\u002ecom\"}"`: `a\\\\u0040example\\u002ecom`,
		`\\\ \\u00zz \na@example.com\`:              `a@example.com`,
		`\ud835\udfce\ud835 a@exa\u200bmple.com`:    `a@exa\u200bmple.com`,
		`a@ex\u00e4mple.com`:                        `a@ex\u00e4mple.com`,
	} {
		found := ""
		for _, h := range find(t, text, "email") {
			found += text[h.Start:h.End]
		}
		if !strings.Contains(found, want) {
			t.Errorf("%s: found %s, want %s", text, found, want)
		}
	}
	for _, text := range []string{`pay:\n4111111111111111`, `\ud835\udfd2111111111111111`} {
		if hits := find(t, text, "card"); len(hits) != 1 || !strings.HasSuffix(text[hits[0].Start:hits[0].End], "111111111111111") {
			t.Errorf("%s: %v", text, hits)
		}
	}
}

func TestFindMember_InvisibleCharactersHideNothing(t *testing.T) {
	t.Parallel()
	set, err := detect.NewSet("secrets")
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"wJalr" + "XUtnFEMI9K7MDENGbPxRfiCYzq4hW", "wJalr" + "XUtnFEM\u200bI9K7MDENGbPxRfiCYzq4hW", "wJalr" + `XUtnFEM\u0049` + "9K7MDENGbPxRfiCYzq4hW"} {
		hits, err := set.NewSearch(1<<10).FindMember("aws_secret_access_key", value)
		if err != nil || len(hits) != 1 || hits[0].Start != 0 || hits[0].End != len(value) {
			t.Errorf("%q: %v, %v", value, hits, err)
		}
	}
}

// A message has many short texts with keywords. The searches of these texts reuse the same memory.
func TestFind_ShortTextsShareMemory(t *testing.T) { //nolint:paralleltest // other tests allocate, too
	set, err := detect.NewSet("secrets")
	if err != nil {
		t.Fatal(err)
	}
	search := set.NewSearch(1 << 20)
	if _, err := search.Find("key"); err != nil { // compiles the rules
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10_000 {
		if _, err := search.Find("key"); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 8<<20 {
		t.Errorf("10000 texts of 3 bytes cost %d bytes", allocated)
	}
}
