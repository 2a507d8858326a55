package policy

import (
	"slices"

	"google.golang.org/protobuf/proto"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// maxFlipPart is the maximum total size, in bytes, of the flips (calls whose result changes) in one message. A
	// larger flip is sent in a message of its own.
	maxFlipPart = 1 << 20
	// maxHeldFlips is the maximum total size, in bytes, of the flips (calls whose result changes) that are held in
	// memory until flips that come before them have been sent.
	maxHeldFlips = 4 << 20
	// flipOrders is larger than every result of [orderOf].
	flipOrders = 16
	// maxDiffRules and maxDiffFindings are the maximum numbers of rules and findings in the totals.
	maxDiffRules, maxDiffFindings = 1000, 1000
)

type (
	// A flipSink receives flips, which are calls whose result changes.
	flipSink func(flips []*policyv1.Flip) error
	// A flipSender sends flips to the caller. The parameter totals is nil until the last flips are sent.
	flipSender func(flips []*policyv1.Flip, totals *policyv1.DiffTotals) error
	// A flipSource compares all calls, and passes the flips to the function emit. If the parameter first is true, the
	// source adds the calls to the totals. complete is false if the comparison ended early. If the source is called
	// again, it compares the same calls as the first time.
	flipSource func(first bool, emit flipSink) (complete bool, err error)
)

// A flipStream sends the flips of a comparison, and then the totals. It sends the flips in the order of [orderOf].
// Flips from deny to allow come first. The number of flips is not limited. If the flips that must be sent later are
// larger than [maxHeldFlips], the flips of some orders are not held in memory. The calls are then compared again for
// each of these orders.
type flipStream struct {
	totals *policyv1.DiffTotals
	send   flipSender
	// opening contains the rules that determine the results of flips of the kind "opens", which are calls that become
	// less restricted. Each rule is written as document/rule.
	opening map[string]bool
	// held contains the flips to send later, by order. The field dropped is true for each order whose flips are not
	// held.
	held     [flipOrders][]*policyv1.Flip
	heldSize [flipOrders]int // in bytes
	dropped  [flipOrders]bool
	part     []*policyv1.Flip
	partSize int // in bytes
}

func newFlipStream(totals *policyv1.DiffTotals, send flipSender) *flipStream {
	return &flipStream{totals: totals, send: send, opening: make(map[string]bool)}
}

// sendFlips sends the flips that the source finds, in the order of [orderOf].
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

// add adds flips to the totals, and holds the flips that must be sent later.
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

// sendOrder sends the flips that have the given order. It ignores all other flips.
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

// finish sends the last flips and the totals. The parameter mayOpen contains rules that may make calls less restricted.
// Not all combinations of names and groups can be compared. Therefore the totals also list the rules in mayOpen for
// which the comparison found no flip of the kind "opens".
func (f *flipStream) finish(mayOpen []engine.RuleRef) error {
	for _, r := range mayOpen {
		if !f.opening[r.String()] && len(f.totals.GetMayOpen()) < maxDiffRules {
			f.totals.MayOpen = append(f.totals.MayOpen, packRule(r))
		}
	}
	f.totals.Findings = slices.Clip(f.totals.GetFindings()[:min(len(f.totals.GetFindings()), maxDiffFindings)])
	return f.send(f.part, f.totals)
}
