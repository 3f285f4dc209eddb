// River, tuned as it advises: batch completion (its default), a short fetch cooldown, many workers. Prints JSON lines.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type noop struct{}

func (noop) Kind() string { return "noop" }

type worker struct {
	river.WorkerDefaults[noop]
	done *atomic.Int64
}

func (w *worker) Work(context.Context, *river.Job[noop]) error {
	w.done.Add(1)
	return nil
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	ctx := context.Background()
	jobs, err := strconv.Atoi(os.Args[2])
	check(err)
	config, err := pgxpool.ParseConfig(os.Args[1])
	check(err)
	config.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(ctx, config)
	check(err)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err)
	for _, one := range []struct {
		row, what string
		jobs      int
		queue     river.QueueConfig
	}{
		{"P1", "River, tuned", jobs, river.QueueConfig{MaxWorkers: 2000, FetchCooldown: time.Millisecond, FetchPollInterval: 5 * time.Millisecond}},
		{"P2", "River, its defaults, 100 workers", jobs / 10, river.QueueConfig{MaxWorkers: 100}},
	} {
		var done atomic.Int64
		workers := river.NewWorkers()
		river.AddWorker(workers, &worker{done: &done})
		client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
			Queues:  map[string]river.QueueConfig{river.QueueDefault: one.queue},
			Workers: workers,
			Logger:  slog.New(slog.DiscardHandler),
		})
		check(err)
		for left := one.jobs; left > 0; {
			batch := min(left, 5000)
			params := make([]river.InsertManyParams, batch)
			for i := range params {
				params[i] = river.InsertManyParams{Args: noop{}}
			}
			_, err = client.InsertManyFast(ctx, params)
			check(err)
			left -= batch
		}
		_, err = pool.Exec(ctx, "vacuum analyze river_job")
		check(err)
		began := time.Now()
		check(client.Start(ctx))
		for done.Load() < int64(one.jobs) {
			time.Sleep(time.Millisecond)
		}
		took := time.Since(began)
		check(client.Stop(ctx))
		fmt.Printf("{\"row\":%q,\"what\":%q,\"value\":%f,\"unit\":\"jobs/s\"}\n", one.row, one.what, float64(one.jobs)/took.Seconds())
	}
}
