package store_test

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
)

// benchStore returns a store in which one owner can create a million buckets.
func benchStore(b *testing.B) *store.Memory {
	b.Helper()
	m, err := store.NewMemory(store.Bounds{Buckets: 20_000_000, Reservations: 1_000_000})
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// names returns n different bucket names of typical length.
func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("acme/policy/tools.read_file/session-%016x", i)
	}
	return all
}

// reserveAndSettle makes one reservation and settles it, as a gateway does for one call.
func reserveAndSettle(b *testing.B, m *store.Memory, key string, limits []store.Limit) {
	result, err := m.Reserve(b.Context(), store.ReserveRequest{Key: key, Owner: "acme/ana", Limits: limits, Lifetime: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	if result.Granted {
		if _, err := m.Settle(b.Context(), result.Reservation.ID, store.Sent); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGranted(b *testing.B) {
	for _, bb := range []struct {
		name   string
		keys   int
		window time.Duration
	}{
		{"1_bucket", 1, time.Second},
		{"10_buckets", 10, time.Second},
		{"1000_buckets", 1_000, time.Second},
		{"1000000_buckets", 1_000_000, time.Hour},
		{"1000000_buckets_that_come_and_go", 1_000_000, 100 * time.Millisecond},
	} {
		b.Run(bb.name, func(b *testing.B) {
			m, all := benchStore(b), names(bb.keys)
			limits := []store.Limit{{Max: 1 << 50, Window: bb.window, Cost: 1}}
			for i := range all {
				limits[0].Bucket = all[i]
				reserveAndSettle(b, m, "warm", limits)
			}
			b.ReportAllocs()
			var i int
			for b.Loop() {
				i = (i + 7919) % bb.keys
				limits[0].Bucket = all[i]
				reserveAndSettle(b, m, "call-0123456789abcdef", limits)
			}
		})
	}
}

func BenchmarkRefused(b *testing.B) {
	m := benchStore(b)
	limits := []store.Limit{{Bucket: "hot", Max: 10, Window: time.Hour, Cost: 1}}
	for range 10 {
		reserveAndSettle(b, m, "warm", limits)
	}
	b.ReportAllocs()
	for b.Loop() {
		reserveAndSettle(b, m, "call-0123456789abcdef", limits)
	}
}

func BenchmarkLimits(b *testing.B) {
	for _, n := range []int{1, 4, 16} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			m := benchStore(b)
			limits := make([]store.Limit, n)
			for i, name := range names(n) {
				limits[i] = store.Limit{Bucket: name, Max: 1 << 50, Window: time.Minute, Cost: 1}
			}
			b.ReportAllocs()
			for b.Loop() {
				reserveAndSettle(b, m, "call-0123456789abcdef", limits)
			}
		})
	}
}

func BenchmarkParallel(b *testing.B) {
	for _, keys := range []int{1, 1_000_000} {
		b.Run(strconv.Itoa(keys)+"_buckets", func(b *testing.B) {
			m, all := benchStore(b), names(keys)
			limits := []store.Limit{{Max: 1 << 50, Window: time.Minute, Cost: 1}}
			for i := range all {
				limits[0].Bucket = all[i]
				reserveAndSettle(b, m, "warm", limits)
			}
			var worker atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				me := int(worker.Add(1))
				i := me * 104729
				key := "call-0123456789abcdef-" + strconv.Itoa(me)
				limits := []store.Limit{{Max: 1 << 50, Window: time.Minute, Cost: 1}}
				for pb.Next() {
					i = (i + 7919) % keys
					limits[0].Bucket = all[i]
					reserveAndSettle(b, m, key, limits)
				}
			})
		})
	}
}
