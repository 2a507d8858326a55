package rpc_test

import (
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
)

const (
	// assumedPatternLen is the assumed maximum length of a string whose only constraint is a pattern.
	assumedPatternLen = 256
	maxCounted        = 1 << 40
)

// maxSize returns the maximum size in bytes of a message that satisfies its constraints. A message type that contains
// itself is counted once.
func maxSize(m protoreflect.MessageDescriptor, above ...protoreflect.FullName) (sum int) {
	for _, name := range above {
		if name == m.FullName() {
			return 0
		}
	}
	above = append(above, m.FullName())
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		rules, _ := proto.GetExtension(fd.Options(), validate.E_Field).(*validate.FieldRules)
		switch {
		case fd.IsMap():
			sum += times(rules.GetMap().GetMaxPairs(), 4+sizeOf(fd.MapKey(), rules.GetMap().GetKeys(), above)+sizeOf(fd.MapValue(), rules.GetMap().GetValues(), above))
		case fd.IsList():
			sum += times(rules.GetRepeated().GetMaxItems(), sizeOf(fd, rules.GetRepeated().GetItems(), above))
		default:
			sum += sizeOf(fd, rules, above)
		}
	}
	return min(sum, maxCounted)
}

func times(n uint64, size int) int {
	return min(int(max(n, 1))*size, maxCounted)
}

func sizeOf(fd protoreflect.FieldDescriptor, rules *validate.FieldRules, above []protoreflect.FullName) int {
	const head = 8 // a tag and a length
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return head + maxSize(fd.Message(), above...)
	case protoreflect.StringKind:
		s := rules.GetString()
		most := uint64(0)
		for _, in := range s.GetIn() {
			most = max(most, uint64(len(in)))
		}
		return head + bounded(s.GetMaxBytes(), s.GetLenBytes(), 4*s.GetMaxLen(), 4*s.GetLen(), most, uint64(len(s.GetConst())))
	case protoreflect.BytesKind:
		return head + bounded(rules.GetBytes().GetMaxLen(), rules.GetBytes().GetLen())
	default:
		return head + 10
	}
}

func bounded(limits ...uint64) int {
	for _, n := range limits {
		if n > 0 {
			return int(n)
		}
	}
	return assumedPatternLen
}

// Case X2. The maximum size of a request is the maximum in the method's contract, or otherwise 64 KiB. A request that
// satisfies the constraints never exceeds this maximum.
func TestContracts_LargestRequestFitsLimit(t *testing.T) {
	t.Parallel()
	const least, most = 64 << 10, 8 << 20
	for _, service := range contracts(t) {
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			limit := least
			if proto.HasExtension(method.Options(), authv1.E_MaxRequestBytes) {
				stated, _ := proto.GetExtension(method.Options(), authv1.E_MaxRequestBytes).(uint32)
				if limit = int(stated); limit <= least || limit > most {
					t.Errorf("%s states %d bytes, want more than %d, which is what it has anyway, and at most %d", method.FullName(), limit, least, most)
				}
			}
			if n := min(maxSize(method.Input()), most); n > limit {
				t.Errorf("a request of %s may have %d bytes, but the limit is %d: state (sluice.auth.v1.max_request_bytes)", method.FullName(), n, limit)
			}
		}
	}
}
