package policy

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// maxFlipPart is the size of the flips, in bytes, after which they are sent.
	maxFlipPart = 1 << 20
	// maxHeldFlips is the maximum size of the flips in memory that are sent after others, in bytes.
	maxHeldFlips = 4 << 20
	// flipOrders is the number of results of [orderOf] and more.
	flipOrders = 16
)

// A flipSender sends flips to the caller. totals is nil until the last flips are sent.
type flipSender func(flips []*policyv1.Flip, totals *policyv1.DiffTotals) error

// A flipStream sends the flips of a comparison, deny to allow first, and then the totals. The number of flips is not
// limited. Their memory is: if the flips that must wait for others are larger than [maxHeldFlips], the calls are compared
// once more for each order.
type flipStream struct {
	totals *policyv1.DiffTotals
	send   flipSender
	// opening contains the rules, as document/rule, that decide in flips of the kind opens.
	opening map[string]bool
	exists  [flipOrders]bool
	// held contains the flips that wait, by order. It is nil if they are too large.
	held map[int][]*policyv1.Flip
	// heldSize and partSize are the sizes of the flips in held and part, in bytes.
	heldSize, partSize int
	part               []*policyv1.Flip
}

func newFlipStream(totals *policyv1.DiffTotals, send flipSender) *flipStream {
	return &flipStream{totals: totals, send: send, opening: make(map[string]bool), held: make(map[int][]*policyv1.Flip)}
}

// sendFlips sends the flips of all parts of a comparison. compare returns the flips of a part; flips of different parts are
// about different calls. compare adds to the totals if count is true. If ctx ends, the comparison ends early.
func (f *flipStream) sendFlips(ctx context.Context, parts int, compare func(part int, count bool) ([]*policyv1.Flip, error)) error {
	for order := range flipOrders {
		if order > 0 && f.held != nil {
			if err := f.sendOrder(f.held[order], order); err != nil {
				return err
			}
			continue
		}
		if order > 0 && !f.exists[order] {
			continue
		}
		for part := range parts {
			flips, err := compare(part, order == 0)
			if err != nil && ctx.Err() == nil {
				return err
			}
			if order == 0 {
				f.add(flips)
			}
			if err := f.sendOrder(flips, order); err != nil {
				return err
			}
			if ctx.Err() != nil {
				f.totals.EndedEarly = true
				break
			}
		}
	}
	return nil
}

// add adds flips to the totals, and holds those that are sent later.
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
		order := orderOf(flip)
		if f.exists[order] = true; order == 0 || f.held == nil {
			continue
		}
		f.held[order] = append(f.held[order], flip)
		if f.heldSize += proto.Size(flip); f.heldSize > maxHeldFlips {
			f.held = nil
		}
	}
}

// sendOrder sends those of the flips that have an order, the calls that were recorded most often first.
func (f *flipStream) sendOrder(flips []*policyv1.Flip, order int) error {
	flips = slices.DeleteFunc(slices.Clone(flips), func(flip *policyv1.Flip) bool { return orderOf(flip) != order })
	slices.SortStableFunc(flips, func(a, b *policyv1.Flip) int { return cmp.Compare(b.GetCalls(), a.GetCalls()) })
	for _, flip := range flips {
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

// finish sends the last flips and the totals. mayOpen are rules that may open calls; the totals name those that decide in
// no flip of the kind opens, because calls by all combinations of names and groups can't be compared.
func (f *flipStream) finish(mayOpen []engine.RuleRef) error {
	for _, r := range mayOpen {
		if !f.opening[r.String()] {
			f.totals.MayOpen = append(f.totals.MayOpen, packRule(r))
		}
	}
	return f.send(f.part, f.totals)
}
