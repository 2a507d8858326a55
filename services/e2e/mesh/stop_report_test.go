package mesh_test

import (
	"fmt"
	"slices"
	"time"
)

// maxLateCalls is the maximum number of messages about late calls.
const maxLateCalls = 5

// stopTimes contains the durations that a run measured. In the run, an operator repeatedly stops calls and resumes
// them.
type stopTimes struct {
	// acknowledged contains, for each stop of calls, the time from the operator's request to the acknowledgement.
	acknowledged []time.Duration
	// lastCall and lastCallInFault contain, for each stop of calls, the time from the request of the stop to the last
	// call that a server received, or 0 if there was no such call. lastCallInFault is for the stops that overlap a
	// fault.
	lastCall, lastCallInFault []time.Duration
	// resumed contains, for each stop of calls and each of its targets, the time from the request to resume calls to
	// the next call of the target that a server received.
	resumed []time.Duration
}

// report checks every stop of calls in the run, and logs a summary.
func (c *stopTest) report(number int, took time.Duration) {
	c.t.Helper()
	if len(c.periods) != number {
		c.t.Errorf("%d of %d stops were acknowledged and resumed", len(c.periods), number)
	}
	disturbed, wide := 0, 0
	for _, p := range c.periods {
		if c.isDisturbed(p) {
			disturbed++
		}
		if len(p.targets) > 1 {
			wide++
		}
	}
	if disturbed == 0 && number > stopsDuringFault {
		c.t.Error("the second gateway had no fault during a stop")
	}
	var ran, stopped, unavailable, other int64
	for _, target := range c.targets {
		for g := range target.results {
			r := &target.results[g]
			ran, stopped, unavailable, other = ran+r.ran.Load(), stopped+r.stopped.Load(), unavailable+r.unavailable.Load(), other+r.other.Load()
		}
	}
	calls := ran + stopped + unavailable + other
	times := c.check()
	c.t.Logf(`%d stops of %d agents and %d servers (%d of them stopped all targets) in %v, with %d policy services; %d stops overlap %d faults of the second gateway
%d calls, %.0f per second: %d ran, %d were stopped, %d were refused without policy, %d failed otherwise
from the request of a stop to its acknowledgement: %s
from the request of a stop to the last call that a server received: %s; during a fault: %s
from the request of a resume to the next call that a server received: %s`,
		len(c.periods), stopAgents, stopServers, wide, took.Round(time.Second), len(c.policies), disturbed, len(c.faults),
		calls, float64(calls)/took.Seconds(), ran, stopped, unavailable, other,
		percentiles(times.acknowledged), percentiles(times.lastCall), percentiles(times.lastCallInFault), percentiles(times.resumed))
}

// isDisturbed reports whether a stop of calls overlaps a fault of the second gateway.
func (c *stopTest) isDisturbed(p stopPeriod) bool {
	return slices.ContainsFunc(c.faults, func(f stopFault) bool { return p.requested.Before(f.ended) && p.acknowledged.After(f.began) })
}

// check compares the times at which servers received calls with the times of all stops of calls. The test fails if a
// server received a call after a stop was acknowledged and before the end of that stop was requested.
func (c *stopTest) check() (times stopTimes) {
	c.t.Helper()
	for _, target := range c.targets {
		slices.SortFunc(target.arrivals, time.Time.Compare)
	}
	late := 0
	for _, p := range c.periods {
		times.acknowledged = append(times.acknowledged, p.acknowledged.Sub(p.requested))
		var last time.Duration
		for _, target := range p.targets {
			at, ok := target.lastArrival(p.requested, p.resumed)
			if ok && at.After(p.acknowledged) {
				if late++; late <= maxLateCalls {
					c.t.Errorf("%s: a call reached the server %v after the stop was acknowledged (%d targets were stopped, during a fault: %v)",
						target.name, at.Sub(p.acknowledged), len(p.targets), c.isDisturbed(p))
				}
			}
			if ok {
				last = max(last, at.Sub(p.requested))
			}
			times.resumed = append(times.resumed, target.nextArrival(p.resumed).Sub(p.resumed))
		}
		if c.isDisturbed(p) {
			times.lastCallInFault = append(times.lastCallInFault, last)
		} else {
			times.lastCall = append(times.lastCall, last)
		}
	}
	if late > maxLateCalls {
		c.t.Errorf("calls reached their server after %d stops were acknowledged", late)
	}
	return times
}

// lastArrival returns the time of the last call that the server received between the times from and to. It reports
// whether there was such a call.
func (s *stopTarget) lastArrival(from, to time.Time) (at time.Time, ok bool) {
	i, _ := slices.BinarySearchFunc(s.arrivals, to, time.Time.Compare)
	if i == 0 || s.arrivals[i-1].Before(from) {
		return time.Time{}, false
	}
	return s.arrivals[i-1], true
}

// nextArrival returns the time of the first call that the server received after the time from. There is always such a
// call, because each resume waits until calls are allowed again.
func (s *stopTarget) nextArrival(from time.Time) time.Time {
	i, _ := slices.BinarySearchFunc(s.arrivals, from, time.Time.Compare)
	return s.arrivals[i]
}

// percentiles formats the median, the 99th percentile and the maximum.
func percentiles(all []time.Duration) string {
	if len(all) == 0 {
		return "no value"
	}
	slices.Sort(all)
	at := func(percent int) time.Duration { return all[(len(all)-1)*percent/100].Round(time.Millisecond) }
	return fmt.Sprintf("p50 %v, p99 %v, max %v", at(50), at(99), at(100))
}
