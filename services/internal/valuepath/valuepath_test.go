package valuepath_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/valuepath"
)

func TestParse_ResolvesEscapes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"/user/email":    {"user", "email"},
		"/items/*/token": {"items", "*", "token"},
		"/a~1b/~0/~01":   {"a/b", "~", "~1"},
		"/a//b":          {"a", "", "b"},
	} {
		if got, err := valuepath.Parse(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

func TestParse_RefusesOtherTexts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                        "selects the whole value",
		"/":                       "selects the whole value",
		"user/email":              "does not begin with /",
		"$.user":                  "does not begin with /",
		"/a~2":                    "has a ~ that is not followed by 0 or 1",
		"/a~":                     "has a ~ that is not followed by 0 or 1",
		strings.Repeat("/a", 33):  "has more than 32 parts",
		strings.Repeat("/a", 300): "is longer than 512 bytes",
	} {
		if _, err := valuepath.Parse(text); err == nil || err.Error() != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSelects_StarMatchesOneLevel(t *testing.T) {
	t.Parallel()
	path, err := valuepath.Parse("/items/*/token")
	if err != nil {
		t.Fatal(err)
	}
	for location, want := range map[string]bool{
		"items 0 token": true, "items key token": true, "items token": false, "items 0 0 token": false, "items 0": false, "other 0 token": false,
	} {
		if got := path.Selects(strings.Fields(location)); got != want {
			t.Errorf("%s: %v", location, got)
		}
	}
}
