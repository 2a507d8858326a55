package journal_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func typicalRecord() journal.Record {
	rec := fullRecord()
	rec.Chain, rec.Run, rec.Code, rec.Hidden, rec.FromServer, rec.Message, rec.ApprovalID = nil, "", "", false, false, "", ""
	rec.ResultBytes, rec.ResultClass, rec.UpstreamStatus, rec.LatencyMS = 0, "", 0, 0
	return rec
}

func BenchmarkIntent(b *testing.B) {
	for _, sync := range []journal.Sync{journal.SyncNever, journal.SyncAlways} {
		for _, callers := range []int{1, 32, 256} {
			b.Run(fmt.Sprintf("sync=%s/callers=%d", sync, callers), func(b *testing.B) {
				cfg := config(b.TempDir())
				cfg.Sync = sync
				cfg.Calls.Bytes = 64 << 20
				cfg.Share = 1 // let one principal use the whole capacity
				j := open(b, cfg)
				rec := typicalRecord()
				b.ReportAllocs()
				if callers == 1 {
					for b.Loop() {
						if err := j.Intent(b.Context(), &rec); err != nil {
							b.Fatal(err)
						}
					}
					return
				}
				b.SetParallelism(callers / 2)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := j.Intent(b.Context(), &rec); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

// BenchmarkApprovedIntent measures writing the intent of an approved call, which is always synced.
func BenchmarkApprovedIntent(b *testing.B) {
	j := open(b, config(b.TempDir()))
	rec := typicalRecord()
	rec.ApprovalID = "a1"
	for b.Loop() {
		if err := j.Intent(b.Context(), &rec); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLine measures the cost of encoding a record, without writing it to disk.
func BenchmarkLine(b *testing.B) {
	rec := typicalRecord()
	b.ReportAllocs()
	line := journal.Lines(b.Fatal)
	for b.Loop() {
		line(&rec, time.Now())
	}
}

func BenchmarkHMAC(b *testing.B) {
	j := open(b, config(b.TempDir()))
	arguments := make([]byte, 1<<10)
	b.ReportAllocs()
	for b.Loop() {
		j.HMAC(arguments)
	}
}

func BenchmarkVerify(b *testing.B) {
	dir := b.TempDir()
	j := open(b, config(dir))
	rec := typicalRecord()
	const records = 10_000
	for range records {
		if err := j.Intent(b.Context(), &rec); err != nil {
			b.Fatal(err)
		}
	}
	closeJournal(b, j)
	for b.Loop() {
		if _, err := journal.Verify(dir); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/records, "ns/record")
}

// BenchmarkBackward measures reading 1,000 records, newest first.
func BenchmarkBackward(b *testing.B) {
	j := open(b, config(b.TempDir()))
	for i := range 1000 {
		writeIntent(b, j, fmt.Sprint("d", i))
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, err := range j.Backward(b.Context(), journal.Position{}, nil) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}
