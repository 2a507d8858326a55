package configedit_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// The time that the TOML decoder needs is quadratic in the number of keys.
func TestParse_RefusesTOMLWithTooManyKeys(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]struct {
		head, item, ending string
		perItem            int
	}{
		"keys":                      {"", "k%d = 1\n", "", 1},
		"dotted keys":               {"", "a.k%d = 1\n", "", 2},
		"headers":                   {"", "[k%d]\n", "", 1},
		"arrays of tables":          {"", "[[a]] # %d\n", "", 1},
		"inline table":              {"", "k%d = 1, ", "last = 1 }\n", 1},
		"inline tables in an array": {"", "{ k%d = 1 },", "]\n", 1},
	} {
		switch {
		case strings.HasPrefix(form.item, "{"):
			form.head = "a = ["
		case form.ending != "":
			form.head = "a = { "
		}
		for _, items := range []int{10_000/form.perItem - 2, 10_000/form.perItem + 1} {
			var b strings.Builder
			b.WriteString(form.head)
			for i := range items {
				fmt.Fprintf(&b, form.item, i)
			}
			b.WriteString(form.ending)
			_, err := configedit.Parse(tomlLayout, []byte(b.String()))
			refused, ok := errors.AsType[*configedit.EditError](err)
			if tooMany := items*form.perItem > 10_000; ok != tooMany || tooMany && !strings.Contains(refused.Message, "10000 keys") {
				t.Errorf("%s: %d items: %v", name, items, err)
			}
		}
	}
}
