package policy

import (
	"slices"

	"google.golang.org/protobuf/proto"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// maxFlipPart limits the total size in bytes of the flips (calls whose result changes) in one message. A larger flip
	// is sent in its own message.
	maxFlipPart = 1 << 20
	// maxHeldFlips limits the total size in bytes of the flips that are held in memory to be sent later.
	maxHeldFlips = 4 << 20
	// flipOrders is greater than every result of [orderOf].
	flipOrders = 16
	// maxDiffRules and maxDiffFindings limit how many rules and findings the totals list.
	maxDiffRules, maxDiffFindings = 1000, 1000
)

type (
	flipSink func(flips []*policyv1.Flip) error
	// A flipSender sends flips to the caller. Only the last call of a flipSender contains totals.
	flipSender func(flips []*policyv1.Flip, totals *policyv1.DiffTotals) error
	// A flipSource compares all calls and passes the flips to emit. Every invocation compares the same calls. Only if
	// first is true does it add the calls to the totals. It returns false if the comparison ended early.
	flipSource func(first bool, emit flipSink) (complete bool, err error)
)

// A flipStream sends the flips of a comparison in the order of [orderOf], and finally the totals. The number of flips
// is not limited. If the flips to be sent later are larger than [maxHeldFlips], the flips of some orders are not held
// in memory. For each of these orders, all calls are compared again.
type flipStream struct {
	totals *policyv1.DiffTotals
	send   flipSender
	// opening contains the rules in flips that open calls, which means that the calls become less restricted. A rule is
	// written as document/rule.
	opening map[string]bool
	// held contains the flips to be sent later, by order. dropped is true for the orders whose flips are not held.
	held     [flipOrders][]*policyv1.Flip
	heldSize [flipOrders]int // in bytes
	dropped  [flipOrders]bool
	part     []*policyv1.Flip
	partSize int // in bytes
}

func newFlipStream(totals *policyv1.DiffTotals, send flipSender) *flipStream {
	return &flipStream{totals: totals, send: send, opening: make(map[string]bool)}
}

// sendFlips sends the flips from the source in the order of [orderOf].
func (f *flipStream) sendFlips(source flipSource) error {
	complete, err := source(true, func(flips []*policyv1.Flip) error {
		f.add(flips)
		return f.sendOrder(flips, 0)
	})
	for order := 1; order < flipOrders && err == nil; order++ {
		if !f.dropped[order] {
			err = f.sendOrder(f.held[order], order)
			f.held[order] = nil
			continue
		}
		var again bool
		again, err = source(false, func(flips []*policyv1.Flip) error { return f.sendOrder(flips, order) })
		complete = complete && again
	}
	f.totals.EndedEarly = f.totals.GetEndedEarly() || !complete
	return err
}

// add counts flips in the totals, and holds the flips that are to be sent later.
func (f *flipStream) add(flips []*policyv1.Flip) {
	for _, flip := range flips {
		f.totals.Total++
		kind := flip.GetKind()
		if kind == policyv1.FlipKind_FLIP_KIND_CLOSES {
			f.totals.Closed++
		}
		if kind == policyv1.FlipKind_FLIP_KIND_OPENS {
			f.totals.Opened++
			for _, r := range []*policyv1.RuleRef{flip.GetBefore().GetRule(), flip.GetAfter().GetRule()} {
				f.opening[r.GetDocument()+"/"+r.GetRule()] = true
			}
		}
		if order := orderOf(flip); order > 0 && !f.dropped[order] {
			f.held[order] = append(f.held[order], flip)
			f.heldSize[order] += proto.Size(flip)
		}
	}
	size := 0
	for order := range flipOrders {
		if size+f.heldSize[order] > maxHeldFlips {
			f.held[order], f.heldSize[order], f.dropped[order] = nil, 0, true
		}
		size += f.heldSize[order]
	}
}

// sendOrder sends those of the given flips that have the given order.
func (f *flipStream) sendOrder(flips []*policyv1.Flip, order int) error {
	for _, flip := range flips {
		if orderOf(flip) != order {
			continue
		}
		size := proto.Size(flip)
		if f.partSize += size; f.partSize > maxFlipPart && len(f.part) > 0 {
			if err := f.send(f.part, nil); err != nil {
				return err
			}
			f.part, f.partSize = nil, size
		}
		f.part = append(f.part, flip)
	}
	return nil
}

// finish sends the last flips and the totals. mayOpen contains rules that might open calls. The totals list those rules
// in mayOpen for which no flip was found, because not all combinations of names and groups can be compared.
func (f *flipStream) finish(mayOpen []engine.RuleRef) error {
	for _, r := range mayOpen {
		if !f.opening[r.String()] && len(f.totals.GetMayOpen()) < maxDiffRules {
			f.totals.MayOpen = append(f.totals.MayOpen, packRule(r))
		}
	}
	f.totals.Findings = slices.Clip(f.totals.GetFindings()[:min(len(f.totals.GetFindings()), maxDiffFindings)])
	return f.send(f.part, f.totals)
}
