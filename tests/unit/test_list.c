/* SPDX-License-Identifier: Apache-2.0 */
/* The intrusive list: order, removal while walking, links that hang nowhere. */
#include "daemon/base/list.h"

#include "tests/check_glake.h"

struct item {
	int value;
	struct list link; /* link: the test's head */
};

/* The values front to tail as a decimal number; 0 for an empty list. */
static int digits(struct list *head)
{
	struct item *item;
	int number = 0;
	list_for_each (item, head, link) {
		number = number * 10 + item->value;
	}
	return number;
}

START_TEST(insert_before_head_is_at_the_tail)
{
	struct list head = LIST_INIT(head);
	struct item items[] = {{.value = 1}, {.value = 2}, {.value = 3}};
	ck_assert(list_is_empty(&head));
	ck_assert_int_eq(digits(&head), 0);
	for (size_t i = 0; i < n_elements(items); i++) {
		list_insert(&head, &items[i].link);
	}
	ck_assert(!list_is_empty(&head));
	ck_assert_int_eq(digits(&head), 123);
	ck_assert_ptr_eq(list_first(&head, struct item, link), &items[0]);
}
END_TEST

START_TEST(insert_before_the_first_is_at_the_front)
{
	struct list head = LIST_INIT(head);
	struct item items[] = {{.value = 1}, {.value = 2}, {.value = 3}};
	for (size_t i = 0; i < n_elements(items); i++) {
		list_insert(head.next, &items[i].link);
	}
	ck_assert_int_eq(digits(&head), 321);
}
END_TEST

START_TEST(removed_link_hangs_nowhere)
{
	struct list head = LIST_INIT(head);
	struct item items[] = {{.value = 1}, {.value = 2}, {.value = 3}};
	for (size_t i = 0; i < n_elements(items); i++) {
		list_insert(&head, &items[i].link);
	}
	list_remove(&items[1].link);
	ck_assert_int_eq(digits(&head), 13);
	ck_assert(list_is_empty(&items[1].link));
	list_remove(&items[1].link);
	ck_assert_int_eq(digits(&head), 13);
	list_insert(&head, &items[1].link);
	ck_assert_int_eq(digits(&head), 132);
	ck_assert_ptr_eq(head.prev, &items[1].link);
}
END_TEST

START_TEST(last_removal_empties_the_list)
{
	struct list head;
	struct item item = {.value = 7};
	list_init(&head);
	list_insert(&head, &item.link);
	list_remove(&item.link);
	ck_assert(list_is_empty(&head));
	ck_assert_ptr_eq(head.prev, &head);
}
END_TEST

START_TEST(safe_walk_survives_free)
{
	struct list head = LIST_INIT(head);
	struct item *item, *spare;
	for (int i = 1; i <= 4; i++) {
		item = calloc(1, sizeof(*item));
		item->value = i;
		list_insert(&head, &item->link);
	}
	int number = 0;
	list_for_each_safe (item, spare, &head, link) {
		number = number * 10 + item->value;
		if (item->value != 3) {
			list_remove(&item->link);
			free(item);
		}
	}
	ck_assert_int_eq(number, 1234);
	ck_assert_int_eq(digits(&head), 3);
	free(list_first(&head, struct item, link));
}
END_TEST
