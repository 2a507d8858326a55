package catalogpages

import (
	"fmt"
	"iter"
	"slices"
)

// perPage is the maximum number of rows on a page. A longer list has several pages.
const perPage = 500

// marks is a set of marks, which a row shows in addition to category and risk. Bit i means markNames[i]. The search
// index contains these bits.
type marks uint8

const (
	markStopped marks = 1 << iota
	markWaits
	markUnsure
	markDecided
	markGone
)

// mark describes a mark on a tool. Slug is its name in CSS classes, and Label is its name on pages.
type mark struct{ Slug, Label string }

var markNames = [...]mark{{"stopped", "Stopped"}, {"waits", "Waits"}, {"unsure", "Unsure"}, {"decided", "Decided by a person"}, {"gone", "Not listed"}}

func marksOf(t *tool) marks {
	var out marks
	p := pinOf(t.GetPin())
	for m, holds := range map[marks]bool{
		markStopped: t.GetQuarantined() || t.GetServerQuarantined() || t.server.GetQuarantined() || t.GetStopped() || !p.Callable,
		markWaits:   len(t.GetWaiting()) > 0 || p.Slug == "waiting",
		markUnsure:  unsure(t.GetClassification()),
		markDecided: t.GetOverride() != nil,
		markGone:    !t.GetListedNow(),
	} {
		if holds {
			out |= m
		}
	}
	return out
}

func (m marks) Names() []mark {
	var out []mark
	for i, named := range markNames {
		if m&(1<<i) != 0 {
			out = append(out, named)
		}
	}
	return out
}

type row struct {
	*tool

	Category *category
	Risk     *risk
	Marks    []mark
	Summary  string
}

func rowOf(t *tool) row {
	c := t.GetClassification()
	return row{t, categoryOf(c.GetCategory()), riskOf(c.GetRisk()), marksOf(t).Names(), summary(t.GetDescription())}
}

func rowsOf(tools []*tool) []row {
	out := make([]row, 0, len(tools))
	for _, t := range tools {
		out = append(out, rowOf(t))
	}
	return out
}

// pagesOfRows yields the number and the rows of each page in a list. Numbers start at 1. There is at least one page.
func pagesOfRows[T any](rows []T) iter.Seq2[int, []T] {
	return func(yield func(int, []T) bool) {
		n := 1
		for part := range slices.Chunk(rows, perPage) {
			if !yield(n, part) {
				return
			}
			n++
		}
		if n == 1 {
			yield(1, nil)
		}
	}
}

// pageName returns the file name of page n of a list, without extension.
func pageName(stem string, n int) string {
	if n == 1 {
		return stem
	}
	return fmt.Sprintf("%s~%d", stem, n)
}

func pagesOf(rows int) int { return max(1, (rows+perPage-1)/perPage) }
