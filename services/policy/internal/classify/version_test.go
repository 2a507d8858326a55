package classify_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// TestVersion_RisesWithTheResults checks that Version is increased when a result for a real tool changes, because
// stored results are recomputed only if Version has increased.
func TestVersion_RisesWithTheResults(t *testing.T) {
	t.Parallel()
	h := sha256.New()
	for _, folder := range []string{"lists", "heldout", "third", "fourth", "fifth", "sixth", "seventh", "eighth"} {
		all := tools(t, folder)
		order := func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }
		for _, key := range slices.SortedFunc(maps.Keys(all), order) {
			raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(classify.Classify(all[key], false))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(h, "%s %x\n", key, raw)
		}
	}
	const file = "testdata/version.txt"
	want := fmt.Sprintf("%d %s\n", classify.Version, hex.EncodeToString(h.Sum(nil)))
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(raw); got == want {
		return
	}
	number, _, _ := strings.Cut(string(raw), " ")
	if number == fmt.Sprint(classify.Version) {
		t.Fatalf("the answers are others than those of version %d: raise Version, and write into %s\n%s", classify.Version, file, want)
	}
	t.Errorf("%s is of another version: write into it\n%s", file, want)
}
