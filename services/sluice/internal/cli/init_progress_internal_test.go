package cli

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgress_NamesOnlyStepsThatLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		p := &progress{print: func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }}
		ended := p.during("%s: short", "a")
		time.Sleep(quietFor / 2)
		ended()
		ended = p.during("%s: long", "a")
		time.Sleep(2 * quietFor)
		synctest.Wait()
		ended()
		if want := []string{"a: long"}; !slices.Equal(lines, want) {
			t.Errorf("the lines are %q, want %q", lines, want)
		}
	})
}
