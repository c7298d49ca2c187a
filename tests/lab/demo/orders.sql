CREATE TABLE orders (
  id INTEGER PRIMARY KEY,
  customer_name TEXT NOT NULL, -- who ordered
  amount NUMERIC(10, 2) NOT NULL, -- order value in euros
  ordered_on DATE NOT NULL -- day of the order
);
